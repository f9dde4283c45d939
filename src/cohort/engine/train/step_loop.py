"""The loop of an executor: admit trials, step all that are resident, give each task its own results.

On several ranks a round of the loop is a window of steps: its events reach the tasks in the order of the steps, and who
comes and goes is settled at its end. On one GPU it is the steps of about two seconds, none past the next evaluation,
each launched before the one before it is read.

Usually there is one task. Several may share an executor when their base model and their adapted linears are the same: a
task of higher priority takes slots at the next step boundary. A trial's bits depend neither on the others in its pack
nor on being parked, so every task ends as it would have alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from cohort.core.clock import Clock
from cohort.core.events import StepDone, TrialFailed
from cohort.engine.train.isolation import is_executor_wide, is_run_wide, one_line, run_isolated
from cohort.engine.train.loop_members import LoopMembers, own_events
from cohort.engine.train.planned_course import PlannedCourse
from cohort.engine.train.supervisor import Supervisor
from cohort.engine.turns.step_turns import EveryoneSteps, StepTurns
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.step_window import MOST_AHEAD_STEPS
from cohort.ranks.training_executor import TrainingExecutor
from cohort.scheduling.admission import Capacity, Request, admit
from cohort.training.launched_step import LaunchedStep
from cohort.training.optimizers.optimizer import UnfinishedUpdateError

__all__ = ["StepLoop", "StopRequestedError"]


class StopRequestedError(Exception):
    """The loop was asked to stop; every task in it has saved its state."""


def _raise(_: Supervisor, error: Exception) -> None:
    raise error


class StepLoop:
    """Steps the residents of one executor until every task in it has ended."""

    def __init__(
        self,
        executor: TrainingExecutor,
        *,
        capacity: Capacity,
        clock: Clock,
        stop_requested: Callable[[], bool],
        at_boundary: Callable[[], None] = lambda: None,
        on_end: Callable[[Supervisor], None] = lambda _: None,
        on_failure: Callable[[Supervisor, Exception], None] = _raise,
        window_steps: int = 1,
        ahead_steps: Callable[[float], int] = lambda _tokens: MOST_AHEAD_STEPS,
        turns: StepTurns | None = None,
    ) -> None:
        """Start without a task.

        Args:
            executor: Trains the residents.
            capacity: Its room.
            clock: Measures steps.
            stop_requested, at_boundary: Called at each step boundary; ``at_boundary`` may call :meth:`join`.
            on_end: Receives a task once all of its trials have ended and its last checkpoint has begun.
            on_failure: Receives a task that an error of its own ended, while the others train on; without it every
                error ends the loop.
            window_steps: Most steps between two boundaries of several ranks; no trial passes its next evaluation.
            ahead_steps: The same for one rank, where each is launched before the one before it is read, from the tokens
                of a step of those that are resident.
            turns: Says who steps when, where others compute with the base model, too; None: all step together.
        """
        self._executor, self._capacity, self._clock = executor, capacity, clock
        self._stop_requested, self._at_boundary, self._on_end = stop_requested, at_boundary, on_end
        self._on_failure = on_failure
        self.free_share = 0.0
        """Share of a step's tokens that residents leave free while no trial waits; 0 while one does."""
        self._window_steps, self._ahead_steps = window_steps, ahead_steps
        self._turns = turns or EveryoneSteps()
        self._members = LoopMembers()
        # after an error in a window: a step by itself says whose it is
        self._is_careful = False
        self._has_warned = False

    def join(self, member: Supervisor, *, tenant: str = "") -> None:
        """Take in a task of ``tenant``; its trials compete for slots from the next step on."""
        self._members.join(member, tenant=tenant)

    def leave(self, member: Supervisor) -> None:
        """Save a task's state at this step boundary, and let the others train on without it."""
        try:
            member.checkpoint()
        finally:
            self._remove(member)

    def run(self) -> None:
        """Train until all tasks have ended.

        Raises:
            StopRequestedError: ``stop_requested`` said so; all states are saved.
            StorageFullError: a disk is full; the last checkpoints are whole.
        """
        try:
            self._run()
        finally:
            self._turns.rest()

    def _run(self) -> None:
        has_stepped = False
        while True:
            # first, so that a task which joins here is checkpointed by a stop in the same round
            self._at_boundary()
            if self._stop_requested():
                for member in self._members:
                    member.checkpoint()
                raise StopRequestedError
            # after the boundary: what callbacks decided about these steps is saved with them, as it is not asked again
            for member in [*self._members] if has_stepped else ():
                self._guard(member, member.checkpoint_when_due)
            for member in [member for member in self._members if member.is_finished]:
                # completed while its results are written
                if self._guard(member, member.begin_last_checkpoint):
                    self._members.leave(member)
                    self._on_end(member)
            if not self._members:
                return
            self._admit()
            # all that were admitted may have failed to load
            if self._executor.resident:
                self._step()
            has_stepped = True

    def _guard(self, member: Supervisor, act: Callable[[], None]) -> bool:
        """Do something of one task; return False if an error ended that task."""
        try:
            act()
        except Exception as error:
            if is_executor_wide(error):
                raise
            self.fail(member, error)
            return False
        return True

    def fail(self, member: Supervisor, error: Exception) -> None:
        """End a task whose error is its own; its last checkpoint stays."""
        self._remove(member)
        self._on_failure(member, error)

    def _remove(self, member: Supervisor) -> None:
        self._members.leave(member)
        member.share.vacate()

    def _admit(self) -> None:
        owned = {key: self._members.owner(key) for key in self._executor.resident}
        wanting = [request for member in self._members for request in member.runnable()]
        resident = [
            member.request_of(trial_id, rank=self._executor.rank_of(key)) for key, (member, trial_id) in owned.items()
        ]
        wanting, resident = self._members.arranged(wanting, resident, turns=self._turns, capacity=self._capacity)
        vacated = [size for member in self._members for size in member.take_vacated()]
        planned = None if self._course is None else self._course.admission(wanting, resident)
        admission = (
            admit(wanting, resident, self._capacity, vacated_batch_sizes=vacated) if planned is None else planned
        )
        failures: list[tuple[Supervisor, TrialFailed]] = []

        def evict(member: Supervisor, trial_id: int) -> None:
            member.evict(trial_id)

        def enter(member: Supervisor, trial_id: int, *, rank: int | None) -> None:
            if (failure := member.enter(trial_id, rank=rank)) is not None:
                failures.append((member, failure))

        def move(member: Supervisor, trial_id: int, *, rank: int) -> None:
            member.move(trial_id, rank=rank)

        num_members = len(self._members)
        for key in admission.evicted:
            self._change(key, evict)
        for key in admission.admitted:
            self._change(key, partial(enter, rank=admission.ranks.get(key)))
        for key, rank in admission.moved.items():
            self._change(key, partial(move, rank=rank))
        is_short = len(self._members) < num_members
        assert self._executor.resident or failures or is_short, "an unfinished task always has a trial that can run"
        # only now: what follows from a failure may change which trials can run
        for member, failure in failures:
            if member in self._members:
                self._guard(member, partial(member.record, [failure]))
        self.free_share = self._free_share(wanting)

    def _change(self, key: int, change: Callable[[Supervisor, int], None]) -> None:
        # of a task that an earlier change ended, nothing is left to change
        if (found := self._members.find_owner(key)) is not None:
            self._guard(found[0], partial(change, *found))

    def _free_share(self, wanting: Sequence[Request]) -> float:
        resident = set(self._executor.resident)
        inside = [request for request in wanting if request.trial_id in resident]
        capacity = self._capacity
        if len(inside) < len(wanting) or len(inside) >= capacity.num_slots or capacity.num_ranks > 1:
            return 0.0
        used = sum(request.tokens_per_step for request in inside) / capacity.tokens_per_step
        return max(0.0, 1 - max(used, sum(request.r for request in inside) / capacity.rank_rows))

    def _step(self) -> None:
        """Step the resident trials of every task: once, or a window of steps. Waiting for a turn is not counted."""
        began = self._clock.monotonic()
        if self._window_steps > 1 and not self._is_careful:
            self._take_window(began)
            return
        executor = self._executor
        if isinstance(executor, LocalExecutor):
            is_ahead = executor.launches_ahead and not self._is_careful and not executor.samples_answers
            # what is launched ahead would hold the base model beyond its turn
            if is_ahead and not self._turns.is_shared:
                self._step_ahead(executor, began)
                return
            self._expect_evaluation(executor)
        self._is_careful = False
        try:
            with self._turns.step(self._members.ready(self._executor.resident)) as keys:
                began = self._clock.monotonic()
                steps_done, failed = run_isolated(
                    self._executor.step,
                    keys,
                    count=self._count_error,
                    reload=self._reload,
                    on_split=self._warn_of_split,
                )
        except Exception as error:
            # with residents of one task alone it is that task's, even where others wait for slots
            owners = {self._members.owner(key)[0] for key in self._executor.resident}
            if len(owners) != 1 or is_executor_wide(error):
                raise
            self.fail(owners.pop(), error)
            return
        for failure in executor.take_failures():
            failed[failure.trial_id] = replace(failure, trial_id=self._members.owner(failure.trial_id)[1])
        self._took(steps_done, failed, seconds=self._clock.monotonic() - began)

    def _step_ahead(self, executor: LocalExecutor, began: float) -> None:
        """Step up to the next evaluation; each step is launched before the one before it is read and recorded.

        So the device has work while the host decides and writes. A trial that a step ends has taken one more by then,
        which is dropped with it. No clock ends this early: it would decide which packs such a trial is in.
        """
        resident = executor.resident
        to_evaluation = (
            member.steps_to_evaluation(trial_id) for member, trial_id in map(self._members.owner, resident)
        )
        # requests of people and a stop wait for a boundary, before which the device runs dry
        # by who is resident, not by all who wait: a step of sixty trials takes seconds, one of six a tenth of one
        requests = (member.request_of(trial_id) for member, trial_id in map(self._members.owner, resident))
        num_left = min(self._ahead_steps(sum(request.tokens_per_step for request in requests)), *to_evaluation)
        if any(member.is_told_of_steps for member in self._members):
            num_left = 1
        launched: LaunchedStep | None = None
        while True:
            following, error = None, None
            if num_left > 0:
                try:
                    self._expect_evaluation(executor)
                    following = executor.launch_step()
                    num_left -= 1
                except Exception as raised:
                    # the step before is taken in first; then a step by itself says whose the error is
                    error, num_left = raised, 0
            if launched is not None:
                events = launched.events()
                self._took(events, {}, seconds=self._clock.monotonic() - began)
                began = self._clock.monotonic()
                if executor.resident != resident:
                    num_left = 0
            if error is not None:
                self._is_careful = True
                for key in executor.resident if isinstance(error, UnfinishedUpdateError) else ():
                    self._reload(key)
            if following is None:
                return
            launched = following

    def _expect_evaluation(self, executor: LocalExecutor) -> None:
        executor.expect_evaluation([due for member in self._members if (due := member.due_after_step())])

    @property
    def _course(self) -> PlannedCourse | None:
        """The plan that the executor follows; tasks that share one refill its slots together."""
        return self._members[0].course if len(self._members) == 1 else None

    def _take_window(self, began: float) -> None:
        left = {}
        for key in self._executor.resident:
            member, trial_id = self._members.owner(key)
            left[key] = member.steps_to_evaluation(trial_id)
        quotas = {key: min(self._window_steps, steps) for key, steps in left.items()}
        if self._course is not None:
            ranks = {key: self._executor.rank_of(key) for key in left}
            quotas = self._course.quotas(left, ranks=ranks, most_steps=self._window_steps)
        # whom the next window will step is known unless a trial comes or goes
        following = {
            key: self._members.owner(key)[0].steps_after(self._members.owner(key)[1], quota)
            for key, quota in quotas.items()
        }
        self._executor.expect_window({key: min(self._window_steps, steps) for key, steps in following.items() if steps})
        window = self._executor.run(quotas)
        if window.error is not None and is_run_wide(window.error):
            raise window.error
        seconds = self._clock.monotonic() - began
        for member in [*self._members] if window.error is None else ():
            self._guard(member, member.evaluate_reached)
        total = sum(event.num_tokens for events in window.rounds for event in events)
        for events in window.rounds:
            share = sum(event.num_tokens for event in events) / total if total else 1 / len(window.rounds)
            self._took(events, {}, seconds=share * seconds)
        if window.error is not None:
            self._is_careful = True
            for key in set(window.broken) & set(self._executor.resident):
                self._reload(key)

    def _took(self, steps_done: Sequence[StepDone], failed: Mapping[int, TrialFailed], *, seconds: float) -> None:
        """Give each task its own results of one step of each trial."""
        total = sum(event.num_tokens for event in steps_done)
        for member in [*self._members]:
            own = own_events(member, steps_done)
            lost = [failure for key, failure in failed.items() if member.share.trial_of(key) is not None]
            if own or lost:
                # a task pays for its share of the pack's tokens
                part = sum(event.num_tokens for event in own) / total if total else 1 / len(self._members)
                self._guard(member, partial(member.took_step, own, lost, seconds=part * seconds))

    def _count_error(self, key: int, error: Exception) -> TrialFailed | None:
        member, trial_id = self._members.owner(key)
        return member.count_error(trial_id, error)

    def _warn_of_split(self, error: Exception) -> None:
        # once: it may come at every step
        if not self._has_warned:
            self._has_warned = True
            for member in self._members:
                member.note(
                    f"warning: these trials could not step together ({one_line(error)}), so they step one by one, "
                    "now and whenever it happens again; this takes longer and changes no result"
                )

    def _reload(self, key: int) -> None:
        member, trial_id = self._members.owner(key)
        member.reload(trial_id)
