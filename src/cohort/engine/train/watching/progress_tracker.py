"""Counts what a run does, for its watcher, from the events and decisions as they are recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cohort.core.events import Evaluated, StepDone, TrialEvent
from cohort.core.rank_work import RankWork
from cohort.core.units import counted
from cohort.engine.train.open_run import OpenRun
from cohort.engine.train.watching.progress import RankProgress, RunProgress
from cohort.prepare.trials import PlannedTrial
from cohort.runs.facts import Activity
from cohort.runs.records import TrialRecord
from cohort.runs.time_left import MeasuredPace, StepsAhead, TokenRate, seconds_left
from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.study import Study
from cohort.tuning.trial_status import TrialStatus

__all__ = ["ProgressTracker"]

# long enough to hold steps and evaluations of most runs, short enough to follow a change of pack
_WINDOW_SECONDS = 15.0
# a snapshot walks over all trials, which every step of a small pack should not wait for
_SECONDS_BETWEEN_UPDATES = 0.25


class ProgressTracker:
    """Turns what happens into snapshots and notes for the run's watcher."""

    def __init__(
        self,
        run: OpenRun,
        *,
        study: Study,
        trials: Sequence[PlannedTrial],
        kept_share: float,
        flat_tokens: float = 0.0,
        recomputed_passes: Callable[[], int] = lambda: 0,
        steps_in_windows: bool = False,
        work: Callable[[], Sequence[RankWork]] = tuple,
        trials_by_rank: Callable[[], Mapping[int, int] | None] = lambda: None,
    ) -> None:
        """Watch ``study``.

        Args:
            run, study, trials: The run, its study and its first trials.
            kept_share: Share of the trials that go on after warm-up, for the time left.
            flat_tokens: Steps of fewer tokens take as long as one of this many; 0 on a CPU.
            recomputed_passes: Returns how many passes used gradient checkpointing.
            steps_in_windows: Whether the events of several steps arrive at once.
            work: Returns what each of several ranks has done so far.
            trials_by_rank: Returns the trials of each rank; None where all ranks hold every trial together.
        """
        self._run, self._study, self._clock, self._watcher = run, study, run.clock, run.watcher
        self._recomputed_passes = recomputed_passes
        self._work, self._trials_by_rank = work, trials_by_rank
        self._worked: deque[tuple[float, Sequence[RankWork]]] = deque()
        self._trials = {trial.spec.trial_id: trial for trial in trials}
        self._kept_share = kept_share
        # run time goes on where earlier processes left it
        self._started = run.clock.monotonic() - run.store.seconds
        self._window: deque[tuple[float, int]] = deque()
        self._tokens_done = 0
        self._tokens_evaluated = 0
        self._updated = -1.0
        self._pace = MeasuredPace(flat_tokens=flat_tokens)
        self._ticked: float | None = None
        self._evaluated_seconds = self._trained_seconds = 0.0
        self._steps_in_windows = steps_in_windows

    def add(self, trials: Sequence[PlannedTrial]) -> None:
        """Count trials that were proposed later."""
        self._trials |= {trial.spec.trial_id: trial for trial in trials}

    def took(self, events: Sequence[TrialEvent], decisions: Sequence[Decision]) -> None:
        """Count what one tick brought; send notes of ends and, now and then, a snapshot."""
        now = self._clock.monotonic()
        tokens = sum(event.num_tokens for event in events if isinstance(event, StepDone | Evaluated))
        trained = sum(event.num_tokens for event in events if isinstance(event, StepDone))
        self._tokens_done += trained
        self._tokens_evaluated += tokens - trained
        self._window.append((now, tokens))
        self._measure(events, now)
        self._worked.append((now, self._work()))
        while len(self._worked) > 2 and now - self._worked[0][0] > _WINDOW_SECONDS:
            self._worked.popleft()
        while len(self._window) > 2 and now - self._window[0][0] > _WINDOW_SECONDS:
            self._window.popleft()
        for decision in decisions:
            self._note(decision)
        if now - self._updated >= _SECONDS_BETWEEN_UPDATES:
            self._updated = now
            self._watcher.update(self.snapshot("training"))

    def _measure(self, events: Sequence[TrialEvent], now: float) -> None:
        """Give the pace what the tick took; what was not evaluation is the step's, recording and deciding included."""
        spent = self._run.time_spent
        evaluated = spent.total(Activity.EVALUATE) + spent.total(Activity.GENERATE)
        evaluating, self._evaluated_seconds = evaluated - self._evaluated_seconds, evaluated
        trained = spent.total(Activity.TRAIN)
        stepping, self._trained_seconds = trained - self._trained_seconds, trained
        before, self._ticked = self._ticked, now
        steps = [event.num_tokens for event in events if isinstance(event, StepDone)]
        evaluations = [event.num_tokens for event in events if isinstance(event, Evaluated)]
        if evaluations and evaluating > 0:
            self._pace.took_evaluation(len(evaluations), num_tokens=sum(evaluations), seconds=evaluating)
        # what came before the first tick is reading and measuring the base
        if steps and before is not None:
            seconds = stepping if self._steps_in_windows else now - before - evaluating
            self._pace.took_step(len(steps), num_tokens=sum(steps), seconds=seconds)

    def snapshot(self, phase: str) -> RunProgress:
        """Return the run at this moment."""
        rate = self._tokens_per_second()
        ahead, most_trials = self._ahead(), self._most_trials()
        at_worst = seconds_left(ahead, pace=self._pace, most_trials=most_trials)
        expected = seconds_left(ahead, pace=self._pace, kept_share=self._kept_share, most_trials=most_trials)
        if expected is None:
            # before enough steps were measured, tokens a second are better than nothing
            by_tokens = TokenRate.of(rate, trained=self._tokens_done, evaluated=self._tokens_evaluated)
            expected = seconds_left(ahead, pace=by_tokens, kept_share=self._kept_share)
        return RunProgress(
            phase=phase,
            trials=tuple(self._trial(trial_id) for trial_id in self._trials),
            metric=self._study.metric,
            elapsed_seconds=self._clock.monotonic() - self._started,
            recomputed_passes=self._recomputed_passes(),
            ranks=self._ranks(),
            tokens_per_second=rate,
            seconds_left=expected,
            seconds_left_at_worst=at_worst,
            tokens_done=self._tokens_done,
        )

    def _ranks(self) -> tuple[RankProgress, ...]:
        work, counts = self._work(), self._trials_by_rank()
        since, before = self._worked[0] if self._worked else (self._clock.monotonic(), work)
        seconds = self._clock.monotonic() - since
        return tuple(
            RankProgress(
                rank=now.rank,
                num_trials=None if counts is None else counts.get(now.rank, 0),
                busy_share=min(1.0, now.since(earlier).busy_seconds / seconds) if seconds > 0 else None,
            )
            for now, earlier in zip(work, before, strict=True)
        )

    def _trial(self, trial_id: int) -> TrialRecord:
        planned, trajectory = self._trials[trial_id], self._study.trajectory(trial_id)
        best, reason = self._study.best_of(trial_id), self._study.reason(trial_id)
        return replace(
            planned.record(),
            status=self._study.status(trial_id),
            steps_done=trajectory.num_steps,
            reason="" if reason is None else str(reason),
            last_loss=trajectory.last_loss,
            tokens=trajectory.num_tokens,
            evaluation_tokens=trajectory.num_evaluation_tokens,
            best_step=None if best is None else best.step,
            best_value=None if best is None else best.value,
            best_loss=None if best is None else best.validation_loss,
            is_protected=self._study.is_protected(trial_id),
        )

    def _note(self, decision: Decision) -> None:
        if decision.kind is DecisionKind.STOP:
            message = f": {decision.message}" if decision.message else ""
            self._watcher.note(f"trial {decision.trial_id} stopped at step {decision.step}: {decision.reason}{message}")
        elif decision.kind is DecisionKind.FINISH:
            self._watcher.note(f"trial {decision.trial_id} completed its {counted(decision.step, 'step')}")

    def _tokens_per_second(self) -> float | None:
        if len(self._window) < 2:
            return None
        seconds = self._window[-1][0] - self._window[0][0]
        # the first entry's tokens were done before its time stamp
        return sum(tokens for _, tokens in list(self._window)[1:]) / seconds if seconds > 0 else None

    def _ahead(self) -> list[StepsAhead]:
        return [
            StepsAhead(
                steps_done=self._study.trajectory(trial_id).num_steps,
                planned_steps=planned.spec.num_steps,
                warmup_steps=planned.candidate.warmup_steps,
                tokens_per_step=planned.planned_tokens / planned.spec.num_steps,
                evaluation_steps=planned.candidate.evaluation_steps,
            )
            for trial_id, planned in self._trials.items()
            if not self._study.status(trial_id).is_final
        ]

    def _most_trials(self) -> int | None:
        """Return how many trials train at once if others wait for room; None if none waits."""
        runnable = self._study.runnable()
        running = sum(self._study.status(trial_id) is TrialStatus.RUNNING for trial_id in runnable)
        return None if running == len(runnable) else max(1, running)
