"""What callbacks may do to their run: as requests, which the run takes up like those of people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from cohort.engine.train.open_run import OpenRun
from cohort.prepare.trials import PlannedTrial
from cohort.runs.records import JsonValue
from cohort.runs.requests.trial_requests import RequestKind, TrialRequest
from cohort.tuning.study import Study

__all__ = ["CallbackRequests"]


class CallbackRequests:
    """Turns what callbacks want into requests about the trials of one run; satisfies ``RunControl``."""

    def __init__(
        self, run: OpenRun, *, study: Study, trials: Mapping[int, PlannedTrial], submit: Callable[[TrialRequest], None]
    ) -> None:
        """Hand requests to ``submit``; ``trials`` may grow."""
        self._run, self._study, self._trials, self._submit = run, study, trials, submit
        self._asked: set[int] = set()
        self._end: str | None = None

    def stop_trial(self, trial_id: int, *, who: str) -> None:
        # twice is harmless: several callbacks may agree, and a rule may have been faster
        if trial_id in self._asked or self._study.status(trial_id).is_final:
            return
        self._asked.add(trial_id)
        self.ask(TrialRequest(kind=RequestKind.STOP, trial_id=trial_id, who=who))

    def ask(self, request: TrialRequest) -> None:
        now = self._run.clock.now()
        self._submit(replace(request, at=f"{now:%Y-%m-%d %H:%M:%S}.{now.microsecond // 1000:03d} UTC"))

    def stop_run(self, *, who: str) -> None:
        self._end = self._end or f"the search ended with {len(self._study.trial_ids)} trials: stopped by {who}"
        for trial_id in self._study.trial_ids:
            self.stop_trial(trial_id, who=who)

    def settle(self) -> str | None:
        """Begin a new step; return why the search is over since the last one, None if it is not."""
        found, self._end = self._end, None
        # a trial that a person resumes may be stopped again
        self._asked.clear()
        return found

    def parameters_of(self, trial_id: int) -> Mapping[str, JsonValue]:
        return dict(self._trials[trial_id].configuration)

    def planned_steps_of(self, trial_id: int) -> int:
        return self._trials[trial_id].spec.num_steps
