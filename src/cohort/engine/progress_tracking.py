"""Keeps count of a run for those who watch, from the events and decisions as they are recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from cohort.core.clock import Clock
from cohort.core.events import Evaluated, StepDone, TrialEvent
from cohort.engine.progress import ProgressWatcher, RunProgress, TrialProgress
from cohort.engine.run_store_records import TrialStatus
from cohort.engine.time_left import TrialAhead, seconds_left
from cohort.engine.trial_planning import PlannedTrial
from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.study import Study
from cohort.tuning.trial_state import TrialState

__all__ = ["ProgressTracker"]

_STATUS = {
    TrialState.WAITING: TrialStatus.WAITING,
    TrialState.RUNNING: TrialStatus.RUNNING,
    TrialState.PARKED: TrialStatus.PARKED,
    TrialState.READY: TrialStatus.PARKED,
    TrialState.FINISHED: TrialStatus.COMPLETED,
    TrialState.STOPPED: TrialStatus.STOPPED,
    TrialState.FAILED: TrialStatus.FAILED,
}
_WINDOW_SECONDS = 15.0
_SECONDS_BETWEEN_UPDATES = 0.25


class ProgressTracker:
    """Turns what happens into snapshots and notes for one watcher."""

    def __init__(
        self,
        watcher: ProgressWatcher,
        *,
        study: Study,
        trials: Sequence[PlannedTrial],
        kept_share: float,
        elapsed_before: float,
        clock: Clock,
    ) -> None:
        """Watch ``study``.

        Args:
            watcher: Told.
            study: Knows each trial's state.
            trials: The first trials.
            kept_share: Share of the trials that go on after warm-up, for the time left.
            elapsed_before: Run time of earlier processes, in seconds.
            clock: Of the run.
        """
        self._watcher, self._study, self._clock = watcher, study, clock
        self._trials = {trial.spec.trial_id: trial for trial in trials}
        self._kept_share = kept_share
        self._started = clock.monotonic() - elapsed_before
        self._window: deque[tuple[float, int]] = deque()
        self._tokens_done = 0
        self._tokens_evaluated = 0
        self._updated = -1.0

    def add(self, trials: Sequence[PlannedTrial]) -> None:
        """Count trials that were proposed later."""
        self._trials |= {trial.spec.trial_id: trial for trial in trials}

    def took(self, events: Sequence[TrialEvent], decisions: Sequence[Decision]) -> None:
        """Count what one tick brought; pass on what is worth a line, and a snapshot now and then."""
        now = self._clock.monotonic()
        tokens = sum(event.num_tokens for event in events if isinstance(event, StepDone | Evaluated))
        trained = sum(event.num_tokens for event in events if isinstance(event, StepDone))
        self._tokens_done += trained
        self._tokens_evaluated += tokens - trained
        self._window.append((now, tokens))
        while len(self._window) > 2 and now - self._window[0][0] > _WINDOW_SECONDS:
            self._window.popleft()
        for decision in decisions:
            self._note(decision)
        if now - self._updated >= _SECONDS_BETWEEN_UPDATES:
            self._updated = now
            self._watcher.update(self.snapshot("training"))

    def snapshot(self, phase: str) -> RunProgress:
        """Return the run at this moment."""
        metric = self._study.metric
        return RunProgress(
            phase=phase,
            trials=tuple(self._trial(trial_id) for trial_id in self._trials),
            metric_label=metric.label,
            maximize=metric.maximize,
            elapsed_seconds=self._clock.monotonic() - self._started,
            tokens_per_second=self._tokens_per_second(),
            seconds_left=self._seconds_left(),
            tokens_done=self._tokens_done,
        )

    def _trial(self, trial_id: int) -> TrialProgress:
        planned, trajectory = self._trials[trial_id], self._study.trajectory(trial_id)
        best, reason = self._study.best_of(trial_id), self._study.reason(trial_id)
        return TrialProgress(
            trial_id=trial_id,
            parameters=dict(planned.configuration),
            status=_STATUS[self._study.state(trial_id)],
            steps_done=trajectory.num_steps,
            planned_steps=planned.spec.num_steps,
            reason="" if reason is None else reason.value,
            train_loss=trajectory.last_loss,
            best_value=None if best is None else best.value,
        )

    def _note(self, decision: Decision) -> None:
        if decision.kind is DecisionKind.STOP:
            message = f": {decision.message}" if decision.message else ""
            self._watcher.note(f"trial {decision.trial_id} stopped at step {decision.step}: {decision.reason}{message}")
        elif decision.kind is DecisionKind.FINISH:
            self._watcher.note(f"trial {decision.trial_id} completed its {decision.step} steps")

    def _tokens_per_second(self) -> float | None:
        if len(self._window) < 2:
            return None
        seconds = self._window[-1][0] - self._window[0][0]
        # the first entry's tokens were done before its time stamp
        return sum(tokens for _, tokens in list(self._window)[1:]) / seconds if seconds > 0 else None

    def _seconds_left(self) -> float | None:
        return seconds_left(
            [
                TrialAhead(
                    steps_done=self._study.trajectory(trial_id).num_steps,
                    planned_steps=planned.spec.num_steps,
                    warmup_steps=planned.candidate.warmup_steps,
                    tokens_per_step=planned.planned_tokens / planned.spec.num_steps,
                )
                for trial_id, planned in self._trials.items()
                if not self._study.state(trial_id).is_final
            ],
            kept_share=self._kept_share,
            trained_tokens=self._tokens_done,
            evaluation_tokens=self._tokens_evaluated,
            tokens_per_second=self._tokens_per_second(),
        )
