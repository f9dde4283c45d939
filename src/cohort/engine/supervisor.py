"""The loop of a run: admit trials, step them, evaluate those that are due, carry out decisions, record it all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cohort.adapters.bank import aligned_rank
from cohort.core.clock import Clock
from cohort.core.events import Evaluated, TrialEvent, TrialFailed
from cohort.engine.checkpoints import Manifest, save_checkpoint
from cohort.engine.isolation import Isolation
from cohort.engine.run_directory import RunDirectory
from cohort.engine.run_store import RunStore
from cohort.engine.state_shelf import StateShelf
from cohort.engine.time_spent import Activity, TimeSpent
from cohort.scheduling.admission import Capacity, Request, admit
from cohort.training.executor import Executor
from cohort.training.trial import TrialSpec
from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.study import Study
from cohort.tuning.trial_state import TrialState as StudyTrialState

__all__ = ["Evaluator", "StopRequestedError", "Supervisor", "SupervisorSettings"]


class StopRequestedError(Exception):
    """The run was asked to stop and has saved its state."""


class Evaluator(Protocol):
    """Evaluates resident trials."""

    def __call__(self, steps: Mapping[int, int]) -> Sequence[Evaluated]:
        """Return one event for each trial of ``steps`` (optimizer steps done, by trial id), in its order."""
        ...


@dataclass(frozen=True, kw_only=True)
class SupervisorSettings:
    """How a run is driven; none of it changes a trial's numbers.

    Attributes:
        capacity: Room of the executor.
        mean_length: Mean tokens of a training row, for admission.
        checkpoint_seconds: Least time between checkpoints.
        checkpoint_share: Most of the run's time that checkpoints may take: states of large adapters are gigabytes.
    """

    capacity: Capacity
    mean_length: float
    checkpoint_seconds: float = 60.0
    checkpoint_share: float = 0.05


class Supervisor:
    """Drives one executor until every trial of a study has ended."""

    def __init__(
        self,
        *,
        study: Study,
        executor: Executor,
        specs: Mapping[int, TrialSpec],
        evaluate: Evaluator,
        store: RunStore,
        shelf: StateShelf,
        directory: RunDirectory,
        settings: SupervisorSettings,
        clock: Clock,
        time_spent: TimeSpent,
        on_tick: Callable[[Sequence[TrialEvent], Sequence[Decision]], None],
        stop_requested: Callable[[], bool],
        note: Callable[[str], None],
    ) -> None:
        """Join the parts.

        Args:
            study: Decides.
            executor: Trains.
            specs: Configuration of each trial.
            evaluate: Evaluates resident trials.
            store: Records.
            shelf: Keeps states of trials that are out of the bank.
            directory: Of the run.
            settings: See :class:`SupervisorSettings`.
            clock: For the time between checkpoints only.
            time_spent: Adds up the seconds of training and evaluation; recorded at each checkpoint.
            on_tick: Told what happened, after it was recorded.
            stop_requested: Asked at each step boundary.
            note: Told, in a line each, of errors of single trials.
        """
        self._study, self._executor, self._specs = study, executor, specs
        self._evaluate, self._store, self._shelf, self._directory = evaluate, store, shelf, directory
        self._settings, self._clock, self._time_spent = settings, clock, time_spent
        self._on_tick, self._stop_requested = on_tick, stop_requested
        self._isolation = Isolation(steps_done=self._steps_known, reload=self._reload, note=note)
        self._vacated: list[int] = []
        self._saved_at, self._pause = clock.monotonic(), settings.checkpoint_seconds

    def restore(self, manifest: Manifest) -> None:
        """Put the trials of a checkpoint back where they were; the study has replayed the log up to it."""
        self._vacated = list(manifest.vacated)
        for trial_id in manifest.resident:
            # a machine with less memory than before holds fewer: the others wait their turn
            if self._executor.fits(self._specs[trial_id]):
                self._enter(trial_id)
        for trial_id in self._study.trial_ids:
            is_running = self._study.state(trial_id) is StudyTrialState.RUNNING
            if is_running and trial_id not in self._executor.resident:
                self._study.pause(trial_id)
        self._saved_at = self._clock.monotonic()

    def run(self) -> None:
        """Go on until all trials have ended.

        Raises:
            StopRequestedError: ``stop_requested`` said so; the state is saved.
            StorageFullError: the disk is full; the last checkpoint is whole.
        """
        while not self._study.is_finished:
            if self._stop_requested():
                self.checkpoint()
                raise StopRequestedError
            self._admit()
            if self._executor.resident:
                self._tick()
            if self._clock.monotonic() - self._saved_at >= self._pause:
                self.checkpoint()
        self.checkpoint()

    def checkpoint(self) -> None:
        """Save the state of every trial at this step boundary."""
        began, resident = self._clock.monotonic(), self._executor.resident
        self._store.add_to_facts(self._time_spent.take())
        for trial_id in resident:
            self._shelf.put_state(trial_id, self._executor.state(trial_id))
        save_checkpoint(self._store, self._shelf, directory=self._directory, resident=resident, vacated=self._vacated)
        for trial_id in resident:
            self._shelf.release_state(trial_id)
        self._saved_at = self._clock.monotonic()
        took = self._saved_at - began
        self._pause = max(self._settings.checkpoint_seconds, took / self._settings.checkpoint_share)

    def _admit(self) -> None:
        resident = self._executor.resident
        admission = admit(
            [self._request(trial_id) for trial_id in self._study.runnable()],
            [self._request(trial_id) for trial_id in resident],
            self._settings.capacity,
            vacated_batch_sizes=self._vacated,
        )
        self._vacated = []
        for trial_id in admission.evicted:
            self._study.pause(trial_id)
            self._leave(trial_id, keep_state=True)
        failed = [failure for trial_id in admission.admitted if (failure := self._enter(trial_id)) is not None]
        assert self._executor.resident or failed, "an unfinished study always has a trial that can run"
        self._record(failed)

    def _request(self, trial_id: int) -> Request:
        spec = self._specs[trial_id]
        return Request(
            trial_id=trial_id,
            r=aligned_rank(spec.adapter.r),
            batch_size=spec.batch_size,
            mean_length=self._settings.mean_length,
        )

    def _enter(self, trial_id: int) -> TrialFailed | None:
        """Make a trial resident where it stood; return its failure when its files are damaged once too often."""
        state, damages = self._shelf.last_good_state(trial_id, at_most=self._steps_known(trial_id))
        for damage in damages:
            if (failure := self._isolation.count(trial_id, damage)) is not None:
                return failure
        slot = self._executor.load(self._specs[trial_id], state)
        self._shelf.release_state(trial_id)
        if self._study.state(trial_id) is not StudyTrialState.RUNNING:
            self._study.start(trial_id)
        self._store.trial_entered(trial_id, slot=slot)
        return None

    def _reload(self, trial_id: int) -> None:
        """Put a resident trial back to its last good state; it does again what it did since, bit for bit."""
        self._executor.drop(trial_id)
        self._store.trial_left(trial_id)
        state, _ = self._shelf.last_good_state(trial_id, at_most=self._steps_known(trial_id))
        self._store.trial_entered(trial_id, slot=self._executor.load(self._specs[trial_id], state))

    def _leave(self, trial_id: int, *, keep_state: bool) -> None:
        if keep_state:
            on_device = self._shelf.keeps_on_device
            self._shelf.put_state(trial_id, self._executor.unload(trial_id, on_device=on_device))
        else:
            self._executor.drop(trial_id)
        self._store.trial_left(trial_id)
        self._vacated.append(self._specs[trial_id].batch_size)

    def _tick(self) -> None:
        """One optimizer step of every resident trial, and the evaluations that are due after it."""
        # by trial, not by slot: rules that depend on the order of results must not see which slots a resume chose
        with self._time_spent.on(Activity.TRAIN):
            steps_done, failed = self._isolation.run(self._executor.step, sorted(self._executor.resident))
        # a trial that was put back to an earlier state repeats what is known
        new = [event for event in steps_done if event.step > self._steps_known(event.trial_id)]
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
                evaluated, lost = self._isolation.run(
                    lambda ids: self._evaluate({trial_id: due[trial_id] for trial_id in ids}), list(due)
                )
            evaluations: list[TrialEvent] = sorted([*evaluated, *lost], key=lambda event: event.trial_id)
            events += evaluations
            decisions += [decision for event in evaluations for decision in self._observe(event)]
        self._store.append(events, decisions)
        self._on_tick(events, decisions)

    def _steps_known(self, trial_id: int) -> int:
        return self._study.trajectory(trial_id).num_steps

    def _record(self, events: Sequence[TrialEvent]) -> None:
        """Observe and record what happened between two ticks."""
        if events:
            decisions = [decision for event in events for decision in self._observe(event)]
            self._store.append(events, decisions)
            self._on_tick(events, decisions)

    def _observe(self, event: TrialEvent) -> Iterable[Decision]:
        decisions = self._study.observe(event)
        for decision in decisions:
            self._carry_out(decision)
        return decisions

    def _carry_out(self, decision: Decision) -> None:
        trial_id = decision.trial_id
        is_resident = trial_id in self._executor.resident
        if decision.kind is DecisionKind.NEW_BEST:
            assert is_resident, "a best checkpoint comes from a trial in the bank"
            weights_rD = self._executor.weights(trial_id, on_device=self._shelf.keeps_on_device)
            self._shelf.put_best(trial_id, weights_rD, step=decision.step)
        elif decision.kind is DecisionKind.PARK:
            self._leave(trial_id, keep_state=True)
        elif decision.kind in (DecisionKind.STOP, DecisionKind.FINISH):
            if is_resident:
                self._leave(trial_id, keep_state=False)
            self._shelf.forget_state(trial_id)
