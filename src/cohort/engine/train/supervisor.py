"""What happens to the trials of a task between steps: they come and go, are evaluated, decided about and recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cohort.adapters.bank import aligned_rank
from cohort.core.clock import Clock
from cohort.core.events import Evaluated, StepDone, TrialEvent, TrialFailed
from cohort.engine.state.checkpoints import Manifest, save_checkpoint
from cohort.engine.state.trial_states import TrialStateStore
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.isolation import TrialErrors, run_isolated
from cohort.engine.train.time_spent import Activity, TimeSpent
from cohort.runs.directory import RunDirectory
from cohort.runs.store import RunStore
from cohort.scheduling.admission import Request
from cohort.training.trial import TrialSpec
from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.study import Study
from cohort.tuning.trial_phase import TrialPhase as StudyTrialState

__all__ = ["Evaluator", "Supervisor", "SupervisorSettings"]


class Evaluator(Protocol):
    """Evaluates resident trials."""

    def __call__(self, steps: Mapping[int, int]) -> Sequence[Evaluated]:
        """Return one event for each trial of ``steps`` (optimizer steps done, by trial id), in its order."""
        ...


@dataclass(frozen=True, kw_only=True)
class SupervisorSettings:
    """How a run is driven; none of it changes a trial's numbers.

    Attributes:
        mean_length: Mean tokens of a training row, for admission.
        priority: Of the task: trials of a higher one take the slots of a lower one at the next step.
        arrival: Place of the task among those that share the executor.
        are_trials_complete: Whether no trial will be proposed any more.
        checkpoint_seconds: Least time between checkpoints.
        checkpoint_share: Most of the run's time that checkpoints may take: states of large adapters are gigabytes.
    """

    mean_length: float
    priority: int = 0
    arrival: int = 0
    are_trials_complete: Callable[[], bool] = lambda: False
    checkpoint_seconds: float = 60.0
    checkpoint_share: float = 0.015


class Supervisor:
    """Looks after the trials of one task in an executor: lets them in and out, evaluates, decides and records.

    The steps themselves, of all tasks together, are a session's.
    """

    def __init__(
        self,
        *,
        study: Study,
        executor: ExecutorShare,
        specs: Mapping[int, TrialSpec],
        evaluate: Evaluator,
        store: RunStore,
        state_store: TrialStateStore,
        directory: RunDirectory,
        settings: SupervisorSettings,
        clock: Clock,
        time_spent: TimeSpent,
        on_tick: Callable[[Sequence[TrialEvent], Sequence[Decision]], None],
        note: Callable[[str], None],
    ) -> None:
        """Join the parts.

        Args:
            study: Decides.
            executor: Trains.
            specs: Configuration of each trial.
            evaluate: Evaluates resident trials.
            store: Records.
            state_store: Keeps states of trials that are out of the bank.
            directory: Of the run.
            settings: See :class:`SupervisorSettings`.
            clock: For the time between checkpoints only.
            time_spent: Adds up the seconds of training and evaluation; recorded at each checkpoint.
            on_tick: Told what happened, after it was recorded.
            note: Told, in a line each, of errors of single trials.
        """
        self._study, self._executor, self._specs = study, executor, specs
        self._evaluate, self._store, self._state_store, self._directory = evaluate, store, state_store, directory
        self._settings, self._clock, self._time_spent = settings, clock, time_spent
        self._on_tick, self.note = on_tick, note
        self._errors = TrialErrors(steps_done=self._steps_known, note=note)
        self._vacated: list[int] = []
        self._saved_at, self._pause = clock.monotonic(), settings.checkpoint_seconds

    @property
    def share(self) -> ExecutorShare:
        """Its part of the executor."""
        return self._executor

    @property
    def is_finished(self) -> bool:
        """Whether every trial has ended."""
        return self._study.is_finished

    def restore(self, manifest: Manifest) -> None:
        """Put the trials of a checkpoint back where they were; the study has replayed the log up to it."""
        self._vacated = list(manifest.vacated)
        for trial_id in manifest.resident:
            # a machine with less memory than before holds fewer: the others wait their turn
            if self._executor.fits(self._specs[trial_id]):
                self.enter(trial_id)
        for trial_id in self._study.trial_ids:
            is_running = self._study.state(trial_id) is StudyTrialState.RUNNING
            if is_running and trial_id not in self._executor.resident:
                self._study.pause(trial_id)
        self._saved_at = self._clock.monotonic()

    def checkpoint(self) -> None:
        """Save the state of every trial at this step boundary.

        Raises:
            StorageFullError: the disk is full; the last checkpoint is whole.
        """
        began, resident = self._clock.monotonic(), self._executor.resident
        self._store.add_to_facts(self._time_spent.take())
        for trial_id in resident:
            self._state_store.put_state(trial_id, self._executor.state(trial_id))
        save_checkpoint(
            self._store, self._state_store, directory=self._directory, resident=resident, vacated=self._vacated
        )
        for trial_id in resident:
            self._state_store.release_state(trial_id)
        self._saved_at = self._clock.monotonic()
        took = self._saved_at - began
        self._pause = max(self._settings.checkpoint_seconds, took / self._settings.checkpoint_share)

    def checkpoint_when_due(self) -> None:
        """Save the state if the last time is long enough ago."""
        if self._clock.monotonic() - self._saved_at >= self._pause:
            self.checkpoint()

    def runnable(self) -> list[Request]:
        """Return what may be resident, in order."""
        return [self._request(trial_id) for trial_id in self._study.runnable()]

    def request_of(self, trial_id: int) -> Request:
        """Return what a resident trial takes."""
        return self._request(trial_id)

    def take_vacated(self) -> list[int]:
        """Return the batch sizes of the trials that left since the last call."""
        vacated, self._vacated = self._vacated, []
        return vacated

    def _request(self, trial_id: int) -> Request:
        spec = self._specs[trial_id]
        return Request(
            trial_id=self._executor.key(trial_id),
            r=aligned_rank(spec.adapter.r),
            batch_size=spec.batch_size,
            mean_length=self._settings.mean_length,
            priority=self._settings.priority,
            arrival=self._settings.arrival,
        )

    def evict(self, trial_id: int) -> None:
        """Take a running trial out for the sake of others; it stays runnable."""
        self._study.pause(trial_id)
        self._leave(trial_id, keep_state=True)

    def enter(self, trial_id: int) -> TrialFailed | None:
        """Make a trial resident where it stood; return its failure when its files are damaged once too often."""
        state, damages = self._state_store.last_good_state(trial_id, at_most=self._steps_known(trial_id))
        for damage in damages:
            if (failure := self._errors.count(trial_id, damage)) is not None:
                return failure
        slot = self._executor.load(self._specs[trial_id], state)
        self._state_store.release_state(trial_id)
        if self._study.state(trial_id) is not StudyTrialState.RUNNING:
            self._study.start(trial_id)
        self._store.trial_entered(trial_id, slot=slot)
        return None

    def reload(self, trial_id: int) -> None:
        """Put a resident trial back to its last good state; it does again what it did since, bit for bit."""
        self._executor.drop(trial_id)
        self._store.trial_left(trial_id)
        state, _ = self._state_store.last_good_state(trial_id, at_most=self._steps_known(trial_id))
        self._store.trial_entered(trial_id, slot=self._executor.load(self._specs[trial_id], state))

    def count_error(self, trial_id: int, error: Exception) -> TrialFailed | None:
        """Count an error of a trial; return its failure when it was the last that is borne."""
        return self._errors.count(trial_id, error)

    def _leave(self, trial_id: int, *, keep_state: bool) -> None:
        if keep_state:
            on_device = self._state_store.keeps_on_device
            self._state_store.put_state(trial_id, self._executor.unload(trial_id, on_device=on_device))
        else:
            self._executor.drop(trial_id)
        self._store.trial_left(trial_id)
        self._vacated.append(self._specs[trial_id].batch_size)

    def took_step(self, steps_done: Sequence[StepDone], failed: Sequence[TrialFailed], *, seconds: float) -> None:
        """Take in one optimizer step of the resident trials, and evaluate those that are due after it.

        Args:
            steps_done: In any order.
            failed: Trials that could not take it.
            seconds: The task's part of the time it took.
        """
        self._time_spent.add(Activity.TRAIN, seconds)
        # a trial that was put back to an earlier state repeats what is known
        new = [event for event in steps_done if event.step > self._steps_known(event.trial_id)]
        # by trial, not by slot: rules that depend on the order of results must not see which slots a resume chose
        events: list[TrialEvent] = sorted([*new, *failed], key=lambda event: event.trial_id)
        decisions = [decision for event in events for decision in self._observe(event)]
        due = {
            trial_id: step
            for trial_id in sorted(self._executor.resident)
            if self._study.next_evaluation(trial_id) == (step := self._executor.steps_of(trial_id))
            and step == self._steps_known(trial_id)
        }
        if due:
            with self._time_spent.on(Activity.EVALUATE):
                evaluated, lost = run_isolated(
                    lambda ids: self._evaluate({trial_id: due[trial_id] for trial_id in ids}),
                    list(due),
                    count=self._errors.count,
                    reload=self.reload,
                )
            evaluations: list[TrialEvent] = sorted([*evaluated, *lost.values()], key=lambda event: event.trial_id)
            events += evaluations
            decisions += [decision for event in evaluations for decision in self._observe(event)]
        self._store.append(events, decisions)
        self._on_tick(events, decisions)

    def _steps_known(self, trial_id: int) -> int:
        return self._study.trajectory(trial_id).num_steps

    def record(self, events: Sequence[TrialEvent]) -> None:
        """Observe and record what happened between two steps."""
        if events:
            decisions = [decision for event in events for decision in self._observe(event)]
            self._store.append(events, decisions)
            self._on_tick(events, decisions)

    def _observe(self, event: TrialEvent) -> Iterable[Decision]:
        decisions = self._study.observe(event)
        if not decisions:
            return decisions
        # no outcome of the others lets these go on: their states need not be kept, nor this one's be fetched
        useless = self._study.certain_to_stop() if self._settings.are_trials_complete() else frozenset()
        for decision in decisions:
            self._carry_out(decision, keep_state=decision.trial_id not in useless)
        for trial_id in useless:
            self._state_store.forget_state(trial_id)
        return decisions

    def _carry_out(self, decision: Decision, *, keep_state: bool) -> None:
        trial_id = decision.trial_id
        is_resident = trial_id in self._executor.resident
        if decision.kind is DecisionKind.NEW_BEST:
            assert is_resident, "a best checkpoint comes from a trial in the bank"
            weights_rD = self._executor.weights(trial_id, on_device=self._state_store.keeps_on_device)
            self._state_store.put_best(trial_id, weights_rD, step=decision.step)
        elif decision.kind is DecisionKind.PARK:
            self._leave(trial_id, keep_state=keep_state)
        elif decision.kind in (DecisionKind.STOP, DecisionKind.FINISH):
            if is_resident:
                self._leave(trial_id, keep_state=False)
            self._state_store.forget_state(trial_id)
