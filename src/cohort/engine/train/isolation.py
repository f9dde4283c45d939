"""What goes wrong with one trial stays with it: whose error it is, how often it is tried again, and when it has failed.

A trial's bits do not depend on its neighbours, so residents that cannot be run together are run one by one: the others
lose nothing but the time, and an error that comes again with a trial alone is that trial's.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from cohort.core.errors import StorageFullError
from cohort.core.events import TrialFailed
from cohort.training.optimizers.optimizer import UnfinishedUpdateError

__all__ = ["MOST_ERRORS", "TrialErrors", "belongs_to_nobody", "one_line", "run_isolated"]

MOST_ERRORS = 3
"""Errors that make a trial a failed one: it is tried again twice."""

_LONGEST_MESSAGE = 400
_FULL = (errno.ENOSPC, errno.EDQUOT)

E = TypeVar("E")


def belongs_to_nobody(error: Exception) -> bool:
    """Tell whether an error is no trial's, whoever was at it: a full disk, a GPU that answers nothing more."""
    if isinstance(error, StorageFullError) or (isinstance(error, OSError) and error.errno in _FULL):
        return True
    # out of memory is an error of its own class; what is left of these leaves the whole process without a GPU
    return isinstance(error, torch.AcceleratorError)


class TrialErrors:
    """Counts the errors of single trials of a task.

    Counts begin anew with each process: whoever resumes a run has repaired something.
    """

    def __init__(self, *, steps_done: Callable[[int], int], note: Callable[[str], None]) -> None:
        """Begin with no error.

        Args:
            steps_done: Optimizer steps that a trial has done, by its id, for messages.
            note: Told of each error, in a line.
        """
        self._steps_done, self._note = steps_done, note
        self._counts: dict[int, int] = {}

    def count(self, trial_id: int, error: Exception) -> TrialFailed | None:
        """Count an error of a trial; return its failure when it was the last that is borne."""
        number = self._counts[trial_id] = self._counts.get(trial_id, 0) + 1
        step, text = self._steps_done(trial_id), one_line(error)
        if number >= MOST_ERRORS:
            return TrialFailed(trial_id=trial_id, step=step, message=f"{text} (tried {MOST_ERRORS} times)")
        self._note(f"warning: trial {trial_id} after step {step}: {text}; trying again ({number} of {MOST_ERRORS - 1})")
        return None


def run_isolated(
    act: Callable[[Sequence[int]], Sequence[E]],
    keys: Sequence[int],
    *,
    count: Callable[[int, Exception], TrialFailed | None],
    reload: Callable[[int], None],
    tell: Callable[[Exception], None] = lambda _: None,
) -> tuple[list[E], dict[int, TrialFailed]]:
    """Return what ``act`` returns for trials together, and those of them that failed, by key.

    Args:
        act: Does something with several trials, or raises.
        keys: Of the trials.
        count: Told of each error of a trial; returns its failure when it was the last.
        reload: Puts a resident trial back to its last good state.
        tell: Told of an error of several trials together that none of them has alone.

    Raises:
        Exception: of ``act``, when it belongs to nobody: a full disk, or all of several trials raise alone as well.
    """
    try:
        return list(act(keys)), {}
    except Exception as error:
        if belongs_to_nobody(error):
            raise
        _hint(keys, error, reload)
        together = error
    done: list[E] = []

    def attempt(key: int) -> Exception | None:
        try:
            done.extend(act([key]))
        except Exception as error:
            if belongs_to_nobody(error):
                raise
            _hint([key], error, reload)
            return error
        return None

    # one trial alone has had its first try
    raised = {key: together if len(keys) == 1 else attempt(key) for key in keys}
    if len(keys) > 1 and None not in raised.values():
        raise together
    if all(error is None for error in raised.values()):
        tell(together)
    failed = {}
    for key, first in raised.items():
        again = first
        while again is not None:
            if (failure := count(key, again)) is not None:
                failed[key] = failure
                break
            again = attempt(key)
    return done, failed


def _hint(keys: Sequence[int], error: Exception, reload: Callable[[int], None]) -> None:
    """An error before the update leaves every trial at its last step; after one within it nobody knows."""
    if isinstance(error, UnfinishedUpdateError):
        for key in keys:
            reload(key)


def one_line(error: Exception) -> str:
    """Return class and words of an error, in a line that is not too long."""
    cause = error.__cause__ if isinstance(error, UnfinishedUpdateError) else error
    text = " ".join(f"{type(cause).__name__}: {cause}".split())
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE - 3]}..."
