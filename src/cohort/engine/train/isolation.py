"""An error of one trial stays with that trial: who caused it, how often it is tried again, and when it has failed.

A trial's bits do not depend on the others in its pack, so residents that cannot run together run one by one: that takes
longer and changes nothing, and an error that comes again with a trial alone is that trial's.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from cohort.core.errors import RankLostError, StorageFullError
from cohort.core.events import TrialFailed
from cohort.metrics import MetricFailedError
from cohort.training.optimizers.optimizer import UnfinishedUpdateError

__all__ = ["MOST_ERRORS", "TrialErrors", "is_executor_wide", "is_run_wide", "one_line", "run_isolated"]

# errors that make a trial a failed one: it is tried again twice, since a file system or a driver may recover
MOST_ERRORS = 3

_LONGEST_MESSAGE = 400
_FULL = (errno.ENOSPC, errno.EDQUOT)

E = TypeVar("E")


def is_run_wide(error: Exception) -> bool:
    """Return True if no single trial caused the error, e.g. disk full or GPU unresponsive."""
    if isinstance(error, StorageFullError | RankLostError) or (isinstance(error, OSError) and error.errno in _FULL):
        return True
    # the user's own function: it would fail for every trial, and must not end any
    if isinstance(error, MetricFailedError):
        return True
    # not out of memory, which has a class of its own: after any other of these the process has lost its GPU
    return isinstance(error, torch.AcceleratorError)


def is_executor_wide(error: Exception) -> bool:
    """Return True if no task of the executor can go on, because a GPU or a process is lost."""
    return isinstance(error, RankLostError | torch.AcceleratorError)


class TrialErrors:
    """Counts the errors of single trials of a task.

    Each process counts from zero: a user who resumes a run has usually repaired something.
    """

    def __init__(self, *, steps_done: Callable[[int], int], note: Callable[[str], None]) -> None:
        """Start with no error; ``steps_done`` returns the steps of a trial, ``note`` receives a line for each error."""
        self._steps_done, self._note = steps_done, note
        self._counts: dict[int, int] = {}

    def count(self, trial_id: int, error: Exception) -> TrialFailed | None:
        """Count an error of a trial; return its failure once it has had its last try."""
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
    on_split: Callable[[Exception], None] = lambda _: None,
) -> tuple[list[E], dict[int, TrialFailed]]:
    """Return what ``act`` returns for trials together, and those of them that failed, by key.

    Args:
        act: Does something with several trials, or raises.
        keys: Keys of the trials.
        count: Counts each error of a trial; returns its failure when it was the last try.
        reload: Puts a resident trial back to its last good state.
        on_split: Receives an error of several trials together that none of them has alone.

    Raises:
        Exception: of ``act``, when it is run-wide, or when each of several trials raises alone as well.
    """
    try:
        return list(act(keys)), {}
    except Exception as error:
        if is_run_wide(error):
            raise
        _undo(keys, error, reload)
        together = error
    done: list[E] = []

    def attempt(key: int) -> Exception | None:
        try:
            done.extend(act([key]))
        except Exception as error:
            if is_run_wide(error):
                raise
            _undo([key], error, reload)
            return error
        return None

    # one trial alone has had its first try
    raised = {key: together if len(keys) == 1 else attempt(key) for key in keys}
    # what fails with every trial is a fault of the machine or of ours: failing them all would hide it
    if len(keys) > 1 and None not in raised.values():
        raise together
    if all(error is None for error in raised.values()):
        on_split(together)
    failed = {}
    for key, first in raised.items():
        again = first
        while again is not None:
            if (failure := count(key, again)) is not None:
                failed[key] = failure
                break
            again = attempt(key)
    return done, failed


def _undo(keys: Sequence[int], error: Exception, reload: Callable[[int], None]) -> None:
    # an error before the update leaves every trial at its last step; within it, weights and moments may be half new
    if isinstance(error, UnfinishedUpdateError):
        for key in keys:
            reload(key)


def one_line(error: Exception) -> str:
    """Return class and message of an error in one line of limited length."""
    cause = error.__cause__ if isinstance(error, UnfinishedUpdateError) else error
    text = " ".join(f"{type(cause).__name__}: {cause}".split())
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE - 3]}..."
