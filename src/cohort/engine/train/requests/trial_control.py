"""What people ask of a run's trials while it trains: taken up between two steps, carried out, recorded, answered.

Requests come from other processes (:mod:`cohort.runs.requests.trial_requests`) or from this one, e.g. from a callback.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import suppress

from cohort.core.errors import InputError, Problem
from cohort.engine.train.open_run import OpenRun
from cohort.runs.requests.trial_requests import Answer, RequestSpool, TrialRequest

__all__ = ["TrialControl"]

# the folder of requests is looked into no more often: on a network disk that takes a while
_SECONDS_BETWEEN_LOOKS = 0.5


class TrialControl:
    """Takes up requests about the trials of one run."""

    def __init__(
        self,
        run: OpenRun,
        *,
        carry_out: Callable[[TrialRequest], Answer],
        is_done: Callable[[TrialRequest], bool],
        save: Callable[[], None],
    ) -> None:
        """Take up requests for ``run``.

        Args:
            carry_out: Does what is asked and records it; raises :class:`InputError` where that cannot be.
            is_done: Whether the record says that a request was carried out.
            save: Makes a checkpoint.
        """
        self._run, self._carry_out, self._is_done, self._save = run, carry_out, is_done, save
        self._spool = RequestSpool(run.directory.requests)
        # of an earlier process, for callers that did not wait so long
        self._spool.clear()
        self._own: queue.SimpleQueue[TrialRequest] = queue.SimpleQueue()
        self._looked: float | None = None

    def submit(self, request: TrialRequest) -> None:
        """Hand in a request from this process, from any thread; it is taken up at the next step boundary.

        A request that cannot be carried out leaves a note. It is not saved at once: a run that is killed and resumed
        repeats the steps since its last checkpoint, and with them what asked.
        """
        self._own.put(request)

    def take_up(self) -> None:
        """Carry out what was asked since the last call; call it between two steps.

        Raises:
            StorageFullError: the disk is full; what was not answered is taken up after a resume.
        """
        with suppress(queue.Empty):
            while True:
                request = self._own.get_nowait()
                if (answer := self._try(request)).problems:
                    reasons = "; ".join(str(problem) for problem in answer.problems)
                    self._run.watcher.note(f"warning: {request.who} asked to {request.text}: {reasons}")
        now = self._run.clock.monotonic()
        if self._looked is not None and now - self._looked < _SECONDS_BETWEEN_LOOKS:
            return
        self._looked = now
        answers = {name: self._answer_to(name) for name in self._spool.waiting()}
        if any(not answer.problems for answer in answers.values()):
            # before the answer: what was answered must survive a kill
            self._save()
        for name, answer in answers.items():
            self._spool.answer(name, answer)

    def close(self) -> None:
        """Refuse what came too late."""
        for name in self._spool.waiting():
            self._spool.answer(name, _refusal("all of its trials have ended"))

    def _answer_to(self, name: str) -> Answer:
        request = self._spool.read(name)
        if request is None:
            return _refusal("the request could not be read")
        # a process that was killed after it had saved, and before it answered
        return Answer(text="done", trial_id=request.trial_id) if self._is_done(request) else self._try(request)

    def _try(self, request: TrialRequest) -> Answer:
        try:
            return self._carry_out(request)
        except InputError as error:
            return Answer(problems=error.problems)


def _refusal(text: str) -> Answer:
    return Answer(
        problems=(
            Problem(
                where="cohort trials",
                found=text,
                allowed="a request about a run that trains",
                hint="See `cohort status RUN_DIR`.",
            ),
        )
    )
