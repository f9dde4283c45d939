"""What happens to the trials of a task between steps: they come and go, are evaluated, decided about and recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from cohort.adapters.bank import aligned_rank
from cohort.checkpoints.checkpoints import Manifest
from cohort.core.events import StepDone, TrialEvent, TrialFailed
from cohort.engine.train.departures import Departures, Keep
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.isolation import TrialErrors, run_isolated
from cohort.engine.train.known_evaluations import Evaluator, KnownEvaluations
from cohort.engine.train.open_run import OpenRun
from cohort.engine.train.planned_course import PlannedCourse
from cohort.engine.train.state_saving import StateSaving
from cohort.engine.train.task_traits import TaskTraits
from cohort.engine.train.time_left import TimeLeft
from cohort.engine.train.trial_starts import TrialStarts
from cohort.runs.facts import Activity
from cohort.scheduling.admission import Request
from cohort.training.trial import TrialSpec
from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.interventions import STOPPED_BY_USER, Intervention, can_be_resumed
from cohort.tuning.study import Study
from cohort.tuning.trial_status import TrialStatus

__all__ = ["Evaluator", "Supervisor"]


class Supervisor:
    """Manages the trials of one task in an executor: admits, parks and evaluates them, decides and records.

    The steps themselves, of all tasks together, are a session's.
    """

    def __init__(
        self,
        run: OpenRun,
        *,
        study: Study,
        share: ExecutorShare,
        specs: Mapping[int, TrialSpec],
        evaluate: Evaluator,
        traits: TaskTraits,
        on_tick: Callable[[Sequence[TrialEvent], Sequence[Decision]], None] = lambda _events, _decisions: None,
    ) -> None:
        """Join the parts; ``specs`` may grow, and ``on_tick`` receives what happened once it is recorded."""
        self.share = share
        self._run, self._study, self._specs, self._traits = run, study, specs, traits
        self._evaluate = KnownEvaluations(evaluate)
        self.starts = TrialStarts(run, study=study, share=share, specs=specs)
        self._on_tick, self.note = on_tick, run.watcher.note
        self._errors = TrialErrors(steps_done=self.starts.steps_known, note=self.note)
        self._departures = Departures(run, share=share, starts=self.starts, specs=specs)
        # parked trials that no outcome of the others lets go on
        self._useless: frozenset[int] = frozenset()
        self._saving, self._time_left = StateSaving(run, share=share), TimeLeft()

    @property
    def is_finished(self) -> bool:
        """Whether every trial has ended."""
        return self._study.is_finished

    @property
    def is_told_of_steps(self) -> bool:
        """Whether a function of the caller hears of each step, and may ask for something before the next."""
        return self._run.callbacks.on_step is not None

    @property
    def course(self) -> PlannedCourse | None:
        """The plan of packs that the trials follow; None where it is not asked."""
        return self._traits.course

    def restore(self, manifest: Manifest) -> None:
        """Put the trials of a checkpoint back where they were; the study has replayed the log up to it."""
        self._departures.vacated = list(manifest.vacated)
        for trial_id in manifest.resident:
            # a machine with less memory than before holds fewer: the others wait their turn
            if self.share.fits(self._specs[trial_id]):
                self.enter(trial_id)
        for trial_id in self._study.trial_ids:
            is_running = self._study.status(trial_id) is TrialStatus.RUNNING
            if is_running and trial_id not in self.share.resident:
                self._study.pause(trial_id)
        self._saving.restored()

    def begin_last_checkpoint(self) -> None:
        """Begin to save what the results are made from, once all trials have ended; other best checkpoints follow.

        It does not wait for the disk, which the results wait for.
        """
        self._saving.begin(
            vacated=self._departures.vacated, bests_of=self._traits.trials_of_results(), is_flushed=False
        )

    def complete_last_checkpoint(self) -> None:
        """Complete what was begun; a kill before repeats the steps since the checkpoint before.

        Raises:
            StorageFullError: the disk is full; the checkpoint before is whole.
        """
        self._saving.complete()

    def checkpoint(self, *, bests_of: Collection[int] | None = None) -> None:
        """Save the state of every trial at this step boundary.

        Args:
            bests_of: Trials whose best checkpoints are waited for; None: all.

        Raises:
            StorageFullError: the disk is full; the last checkpoint is whole.
        """
        self._saving.save(vacated=self._departures.vacated, bests_of=bests_of)

    def checkpoint_when_due(self) -> None:
        """Begin to save the state if the last checkpoint is long enough ago; trials train on while it is written.

        Raises:
            StorageFullError: the disk is full; the last checkpoint is whole.
        """
        seconds_left = self._time_left.at_boundary(self._run.clock.monotonic(), self._steps_left())
        self._saving.save_when_due(
            vacated=self._departures.vacated, bests_of=self._traits.trials_of_results, seconds_left=seconds_left
        )

    def _steps_left(self) -> dict[int, int]:
        """Return the steps that each trial has still to take; none while others wait, or may be proposed."""
        resident = self.share.resident
        left = [trial_id for trial_id in self._study.trial_ids if not self._study.status(trial_id).is_final]
        if len(left) > len(resident) or not self._traits.are_trials_complete():
            return {}
        return {trial_id: self._specs[trial_id].num_steps - self.starts.steps_known(trial_id) for trial_id in resident}

    def runnable(self) -> list[Request]:
        """Return what may be resident, in order."""
        return [self.request_of(trial_id) for trial_id in self._study.runnable()]

    def take_vacated(self) -> list[int]:
        """Return the batch sizes of the trials that left since the last call."""
        vacated, self._departures.vacated = self._departures.vacated, []
        return vacated

    def request_of(self, trial_id: int, *, rank: int = 0) -> Request:
        """Return what a trial takes while it is resident; ``rank``: where a resident is."""
        spec = self._specs[trial_id]
        return Request(
            trial_id=self.share.key(trial_id),
            r=aligned_rank(spec.adapter.num_rows),
            batch_size=spec.batch_size,
            mean_length=self._traits.mean_length,
            priority=self._traits.priority,
            arrival=self._traits.arrival,
            rank=rank,
        )

    def steps_to_evaluation(self, trial_id: int) -> int:
        """Return the steps of a resident trial up to its next evaluation, or to its end."""
        following = self._study.next_evaluation(trial_id)
        last = self._specs[trial_id].num_steps if following is None else following
        steps = self.share.steps_of(trial_id)
        if (lost := self.starts.lost_best(trial_id)) is not None and lost > steps:
            last = min(last, lost)
        return max(1, last - steps)

    def steps_after(self, trial_id: int, quota: int) -> int:
        """Return what :meth:`steps_to_evaluation` will probably say once a resident has taken ``quota`` steps."""
        steps, num_steps = self.share.steps_of(trial_id) + quota, self._specs[trial_id].num_steps
        times = self._study.candidate(trial_id).evaluation_steps
        return next((step for step in times if step > steps), num_steps) - steps

    def evict(self, trial_id: int) -> None:
        """Take a running trial out to make room for more urgent ones; it stays runnable."""
        self._study.pause(trial_id)
        self._departures.leave(trial_id, keep=Keep.ALWAYS)

    def move(self, trial_id: int, *, rank: int) -> None:
        """Take a resident trial to another rank, exactly as it stands."""
        state = self.share.unload(trial_id, on_device=self._run.state_store.keeps_on_device)
        self._run.store.trial_left(trial_id)
        self._run.store.trial_entered(trial_id, slot=self.share.load(self._specs[trial_id], state, rank=rank))

    def enter(self, trial_id: int, *, rank: int | None = None) -> TrialFailed | None:
        """Make a trial resident where it stood; return its failure when its files are damaged once too often.

        Args:
            rank: Where; None for the one with the least to do.
        """
        state, damages = self.starts.current(trial_id)
        # an older state is no loss, since the same steps give the same bits, but damage must not go on for ever
        for damage in damages:
            if (failure := self._errors.count(trial_id, damage)) is not None:
                return failure
        slot = self.share.load(self._specs[trial_id], state, rank=rank)
        self._run.state_store.release_state(trial_id)
        # a restored trial is running already: the replayed log says so
        if self._study.status(trial_id) is not TrialStatus.RUNNING:
            self._study.start(trial_id)
        self._run.store.trial_entered(trial_id, slot=slot)
        return None

    def reload(self, trial_id: int) -> None:
        """Put a resident trial back to its last good state; it does again what it did since, bit for bit."""
        self.share.drop(trial_id)
        self._run.store.trial_left(trial_id)
        state, _ = self.starts.current(trial_id)
        self._run.store.trial_entered(trial_id, slot=self.share.load(self._specs[trial_id], state))

    def intervene(self, intervention: Intervention) -> None:
        """Carry out and record what a person asks of a trial between two steps.

        A trial that is resumed goes on from its state, or, if that is gone, from the last one that is left; the steps
        since are trained again, to the same bits.
        """
        if intervention.kind is DecisionKind.RESUME:
            self._run.state_store.reclaim_state(intervention.trial_id)
        self._append([], self._settle(self._study.intervene(intervention)))

    def count_error(self, trial_id: int, error: Exception) -> TrialFailed | None:
        """Count an error of a trial; return its failure once it has had its last try."""
        return self._errors.count(trial_id, error)

    def took_step(self, steps_done: Sequence[StepDone], failed: Sequence[TrialFailed], *, seconds: float) -> None:
        """Take in one optimizer step of the resident trials, and evaluate those that are due after it.

        Args:
            steps_done: In any order.
            failed: Trials that could not take it.
            seconds: The task's part of the time it took.
        """
        self._run.time_spent.add(Activity.TRAIN, seconds)
        resident = set(self.share.resident)
        self.starts.keep_lost_bests()
        # a trial that was put back to an earlier state repeats what is known; one that ended within a window has no
        # further steps
        new = [
            event
            for event in steps_done
            if event.step > self.starts.steps_known(event.trial_id) and event.trial_id in resident
        ]
        # by trial, not by slot: rules that depend on the order of results must not see which slots a resume chose
        events: list[TrialEvent] = sorted([*new, *failed], key=lambda event: event.trial_id)
        decisions = [decision for event in events for decision in self._observe(event)]
        due = self._due()
        if due:
            with self._run.time_spent.on(Activity.EVALUATE):
                evaluated, lost = run_isolated(
                    lambda ids: self._evaluate({trial_id: due[trial_id] for trial_id in ids}),
                    list(due),
                    count=self._errors.count,
                    reload=self.reload,
                )
            evaluations: list[TrialEvent] = sorted([*evaluated, *lost.values()], key=lambda event: event.trial_id)
            events += evaluations
            decisions += [decision for event in evaluations for decision in self._observe(event)]
        self._append(events, decisions)

    def record(self, events: Sequence[TrialEvent]) -> None:
        """Observe and record what happened between two steps."""
        self._append(events, [decision for event in events for decision in self._observe(event)])

    def _append(self, events: Sequence[TrialEvent], decisions: Sequence[Decision]) -> None:
        # one transaction for all of a tick: after a kill no decision stands in the log without what led to it
        self._run.store.append(events, decisions)
        self._on_tick(events, decisions)

    def evaluate_reached(self) -> None:
        """Evaluate at once all residents that a window of steps has brought to an evaluation, by whichever step."""
        if len(reached := self._reached()) > 1:
            with self._run.time_spent.on(Activity.EVALUATE):
                self._evaluate.make(reached)

    def due_after_step(self) -> list[int]:
        """Return the residents, by their numbers in the executor, that will be due if they take one more step."""
        due = []
        for trial_id in self.share.resident:
            step = self.share.steps_of(trial_id)
            # further than what is known: the last step is launched and not read yet
            if step >= self.starts.steps_known(trial_id) and self._study.next_evaluation(trial_id) == step + 1:
                due.append(self.share.key(trial_id))
        return due

    def _reached(self) -> dict[int, int]:
        """Return the residents that stand where they are evaluated, with their steps."""
        steps = {trial_id: self.share.steps_of(trial_id) for trial_id in sorted(self.share.resident)}
        return {trial_id: step for trial_id, step in steps.items() if step == self._study.next_evaluation(trial_id)}

    def _due(self) -> dict[int, int]:
        """Return the residents to evaluate now, with their steps."""
        # a trial that repeats known steps is not due before it has caught up
        return {
            trial_id: step for trial_id, step in self._reached().items() if step == self.starts.steps_known(trial_id)
        }

    def _observe(self, event: TrialEvent) -> Sequence[Decision]:
        return self._settle(self._study.observe(event))

    def _settle(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        """Carry out decisions, and free what they make useless."""
        if not decisions:
            return decisions
        # no outcome of the others lets these go on: their states need not be kept, nor this one's be fetched
        useless = self._study.certain_to_stop() if self._traits.are_trials_complete() else frozenset()
        for decision in decisions:
            self._carry_out(decision, is_useless=decision.trial_id in useless)
        for trial_id in useless - self._useless:
            self._run.state_store.spare_state(trial_id)
            # its best weights stay as they are, and the last checkpoint waits for all that are not written by then
            self._run.state_store.write_ahead(trial_id)
        self._useless = useless
        for trial_id in self._traits.trials_to_forget():
            self._run.state_store.forget_best(trial_id)
        return decisions

    def _carry_out(self, decision: Decision, *, is_useless: bool) -> None:
        trial_id, states = decision.trial_id, self._run.state_store
        is_resident = trial_id in self.share.resident
        if decision.kind is DecisionKind.NEW_BEST:
            assert is_resident, "a best checkpoint comes from a trial in the bank"
            self.starts.keep_best(trial_id, step=decision.step)
        elif decision.kind is DecisionKind.PARK:
            self._departures.leave(trial_id, keep=Keep.WHILE_THERE_IS_ROOM if is_useless else Keep.ALWAYS)
        elif decision.kind is DecisionKind.STOP and decision.reason == STOPPED_BY_USER:
            # a person who stops a trial may resume it: its state stays, also in checkpoints
            if is_resident:
                self._departures.leave(trial_id, keep=Keep.ALWAYS)
        elif decision.kind is DecisionKind.STOP and can_be_resumed(decision.reason):
            if is_resident:
                self._departures.leave(trial_id, keep=Keep.WHILE_THERE_IS_ROOM)
            else:
                states.spare_state(trial_id)
        elif decision.kind in (DecisionKind.STOP, DecisionKind.FINISH):
            if is_resident:
                self._departures.leave(trial_id, keep=Keep.NEVER)
            states.forget_state(trial_id)
        if decision.kind in (DecisionKind.STOP, DecisionKind.FINISH):
            states.write_ahead(trial_id)
