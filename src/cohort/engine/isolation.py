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
from cohort.training.executor import UnfinishedUpdateError

__all__ = ["MOST_ERRORS", "Isolation", "belongs_to_nobody"]

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


class Isolation:
    """Runs what trials do together; where that raises, finds out whose error it is and counts it.

    Counts begin anew with each process: whoever resumes a run has mended something.
    """

    def __init__(
        self, *, steps_done: Callable[[int], int], reload: Callable[[int], None], note: Callable[[str], None]
    ) -> None:
        """Begin with no error.

        Args:
            steps_done: Optimizer steps that a trial has done, by its id, for messages.
            reload: Puts a resident trial back to its last good state.
            note: Told of each error, in a line.
        """
        self._steps_done, self._reload, self._note = steps_done, reload, note
        self._errors: dict[int, int] = {}

    def run(
        self, act: Callable[[Sequence[int]], Sequence[E]], trial_ids: Sequence[int]
    ) -> tuple[list[E], list[TrialFailed]]:
        """Return what ``act`` returns for ``trial_ids``, and those of them that failed.

        Raises:
            Exception: of ``act``, when it belongs to nobody: a full disk, or all of several trials raise alone as well.
        """
        try:
            return list(act(trial_ids)), []
        except Exception as error:
            if belongs_to_nobody(error):
                raise
            self._mend(trial_ids, error)
            return self._one_by_one(act, trial_ids, error)

    def count(self, trial_id: int, error: Exception) -> TrialFailed | None:
        """Count an error of a trial; return its failure when it was the last that is borne."""
        number = self._errors[trial_id] = self._errors.get(trial_id, 0) + 1
        step, text = self._steps_done(trial_id), _one_line(error)
        if number >= MOST_ERRORS:
            return TrialFailed(trial_id=trial_id, step=step, message=f"{text} (tried {MOST_ERRORS} times)")
        self._note(f"warning: trial {trial_id} after step {step}: {text}; trying again ({number} of {MOST_ERRORS - 1})")
        return None

    def _one_by_one(
        self, act: Callable[[Sequence[int]], Sequence[E]], trial_ids: Sequence[int], error: Exception
    ) -> tuple[list[E], list[TrialFailed]]:
        done: list[E] = []
        raised: dict[int, Exception] = {}
        for trial_id in trial_ids:
            # one trial alone has had its first try
            found = error if len(trial_ids) == 1 else self._attempt(act, trial_id, done)
            if found is not None:
                raised[trial_id] = found
        if len(raised) == len(trial_ids) > 1:
            raise error
        failed = []
        for trial_id, first in raised.items():
            again: Exception | None = first
            while again is not None:
                failure = self.count(trial_id, again)
                if failure is not None:
                    failed.append(failure)
                    break
                again = self._attempt(act, trial_id, done)
        return done, failed

    def _attempt(self, act: Callable[[Sequence[int]], Sequence[E]], trial_id: int, done: list[E]) -> Exception | None:
        try:
            done += act([trial_id])
        except Exception as error:
            if belongs_to_nobody(error):
                raise
            self._mend([trial_id], error)
            return error
        return None

    def _mend(self, trial_ids: Sequence[int], error: Exception) -> None:
        """An error before the update leaves every trial at its last step; one within it leaves nobody knows what."""
        if isinstance(error, UnfinishedUpdateError):
            for trial_id in trial_ids:
                self._reload(trial_id)


def _one_line(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, UnfinishedUpdateError) else error
    text = " ".join(f"{type(cause).__name__}: {cause}".split())
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE - 3]}..."
