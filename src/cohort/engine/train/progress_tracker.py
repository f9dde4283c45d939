"""Keeps count of a run for those who watch, from the events and decisions as they are recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from cohort.core.clock import Clock
from cohort.core.events import Evaluated, StepDone, TrialEvent
from cohort.engine.prepare.trials import PlannedTrial
from cohort.engine.train.pace import Pace, TrialLeft, seconds_at_pace
from cohort.engine.train.progress import ProgressWatcher, RunProgress, TrialProgress
from cohort.engine.train.time_spent import Activity, TimeSpent
from cohort.runs.records import TrialStatus
from cohort.runs.time_left import TrialAhead, seconds_left
from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.study import Study
from cohort.tuning.trial_phase import TrialPhase

__all__ = ["ProgressTracker"]

_STATUS = {
    TrialPhase.WAITING: TrialStatus.WAITING,
    TrialPhase.RUNNING: TrialStatus.RUNNING,
    TrialPhase.PARKED: TrialStatus.PARKED,
    TrialPhase.READY: TrialStatus.PARKED,
    TrialPhase.FINISHED: TrialStatus.COMPLETED,
    TrialPhase.STOPPED: TrialStatus.STOPPED,
    TrialPhase.FAILED: TrialStatus.FAILED,
}
# trials that would train if there were room
_WAITING = (TrialPhase.WAITING, TrialPhase.READY)
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
        flat_tokens: float,
        time_spent: TimeSpent,
        clock: Clock,
        recomputed_passes: Callable[[], int] = lambda: 0,
    ) -> None:
        """Watch ``study``.

        Args:
            watcher: Told.
            study: Knows each trial's state.
            trials: The first trials.
            kept_share: Share of the trials that go on after warm-up, for the time left.
            elapsed_before: Run time of earlier processes, in seconds.
            flat_tokens: Steps of fewer tokens take as long as one of so many, as far as is known before the first.
            time_spent: Where the run's seconds are added up.
            clock: Of the run.
            recomputed_passes: Says how many passes were recomputed.
        """
        self._recomputed_passes = recomputed_passes
        self._watcher, self._study, self._clock = watcher, study, clock
        self._trials = {trial.spec.trial_id: trial for trial in trials}
        self._kept_share = kept_share
        self._started = clock.monotonic() - elapsed_before
        self._window: deque[tuple[float, int]] = deque()
        self._tokens_done = 0
        self._tokens_evaluated = 0
        self._updated = -1.0
        self._time_spent, self._pace = time_spent, Pace(flat_tokens=flat_tokens)
        self._ticked: float | None = None
        self._evaluated_seconds = 0.0

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
        self._measure(events, now)
        while len(self._window) > 2 and now - self._window[0][0] > _WINDOW_SECONDS:
            self._window.popleft()
        for decision in decisions:
            self._note(decision)
        if now - self._updated >= _SECONDS_BETWEEN_UPDATES:
            self._updated = now
            self._watcher.update(self.snapshot("training"))

    def _measure(self, events: Sequence[TrialEvent], now: float) -> None:
        """Tell the pace what the tick took: all of it is the step's, but what was spent on evaluation."""
        evaluated = self._time_spent.total(Activity.EVALUATE) + self._time_spent.total(Activity.GENERATE)
        evaluating, self._evaluated_seconds = evaluated - self._evaluated_seconds, evaluated
        before, self._ticked = self._ticked, now
        steps = [event.num_tokens for event in events if isinstance(event, StepDone)]
        evaluations = [event.num_tokens for event in events if isinstance(event, Evaluated)]
        if evaluations and evaluating > 0:
            self._pace.took_evaluation(len(evaluations), num_tokens=sum(evaluations), seconds=evaluating)
        if steps and before is not None:
            self._pace.took_step(len(steps), num_tokens=sum(steps), seconds=now - before - evaluating)

    def snapshot(self, phase: str) -> RunProgress:
        """Return the run at this moment."""
        metric = self._study.metric
        return RunProgress(
            phase=phase,
            trials=tuple(self._trial(trial_id) for trial_id in self._trials),
            metric_label=metric.label,
            maximize=metric.maximize,
            elapsed_seconds=self._clock.monotonic() - self._started,
            recomputed_passes=self._recomputed_passes(),
            tokens_per_second=self._tokens_per_second(),
            seconds_left=self._seconds_left(),
            seconds_left_at_worst=self._seconds_at_pace(kept_share=1.0),
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

    def _seconds_at_pace(self, *, kept_share: float) -> float | None:
        states = {trial_id: self._study.state(trial_id) for trial_id in self._trials}
        left = {trial_id: self._trials[trial_id] for trial_id, state in states.items() if not state.is_final}
        done = {trial_id: self._study.trajectory(trial_id).num_steps for trial_id in left}
        is_open = any(done[trial_id] < planned.candidate.warmup_steps for trial_id, planned in left.items())
        is_crowded = any(state in _WAITING for state in states.values())
        return seconds_at_pace(
            [_left(planned, done[trial_id], is_open=is_open) for trial_id, planned in left.items()],
            pace=self._pace,
            kept_share=kept_share,
            most_trials=max(1, sum(state is TrialPhase.RUNNING for state in states.values())) if is_crowded else None,
        )

    def _seconds_left(self) -> float | None:
        at_pace = self._seconds_at_pace(kept_share=self._kept_share)
        if at_pace is not None:
            return at_pace
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


def _left(planned: PlannedTrial, done: int, *, is_open: bool) -> TrialLeft:
    """Return what a trial that has done ``done`` steps has before it; ``is_open``: others are still in warm-up."""
    warmup, last = planned.candidate.warmup_steps, planned.spec.num_steps
    ahead = [step for step in planned.candidate.evaluation_steps if step > done]
    in_warmup = sum(step <= warmup for step in ahead)
    return TrialLeft(
        steps=(max(0, warmup - done), max(0, last - max(done, warmup))),
        evaluations=(in_warmup, len(ahead) - in_warmup),
        tokens_per_step=planned.planned_tokens / last,
        is_judged=done > warmup or not is_open,
    )
