"""Tasks in one executor: they join, new or from a checkpoint, train and finish. Usually there is one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from cohort.checkpoints.checkpoints import Manifest
from cohort.core.clock import Clock
from cohort.core.errors import RankLostError, RunStateError, StorageFullError
from cohort.core.interrupts import StopRequest, stopping_gently
from cohort.engine.callbacks.callback_caller import CallbackError
from cohort.engine.train.behind_writing import BehindWriting
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.isolation import is_executor_wide
from cohort.engine.train.open_run import OpenRun
from cohort.engine.train.session import Session, StopRequestedError
from cohort.engine.train.supervisor import Supervisor
from cohort.engine.train.task_run import TaskRun
from cohort.engine.train.trained_again import trained_to
from cohort.memory.watch import MemoryWatch
from cohort.prepare.group_reference import with_group_reference
from cohort.prepare.preparation import Preparation
from cohort.runs.facts import PassFacts

__all__ = ["TaskSession"]


class TaskSession:
    """An executor and the tasks that train in it, each with its own run.

    Attributes:
        sizes: The executor's.
    """

    def __init__(self, preparation: Preparation, *, clock: Clock) -> None:
        """Build the executor that ``preparation`` asks for; other tasks of the session use it as it is."""
        self.sizes, self._plan, self._clock = preparation.sizes, preparation.memory, clock
        self._window_steps, self._ahead_steps = preparation.window_steps, preparation.ahead_steps
        self._executor = preparation.build_executor()
        self._executor.reliefs.append(self._make_room)
        self._num_joined = 0
        self._members: dict[Supervisor, TaskRun] = {}
        self._joining: list[Supervisor] = []
        # tasks with results whose spare checkpoints are on their way, and what to call then
        self._behind: dict[TaskRun, tuple[BehindWriting, Callable[[], None]]] = {}
        self._loop: Session | None = None
        self._sharing: tuple[TaskRun, ...] = ()

    @property
    def free_share(self) -> float:
        """Share of a step's tokens that residents leave free while no trial waits; may be read by any thread."""
        return 0.0 if self._loop is None else self._loop.free_share

    def draw_ahead(self, preparation: Preparation) -> None:
        """Draw what a new task's first trials begin with, while its record begins and the base model is measured."""
        share = ExecutorShare(self._executor, rows=preparation.inputs.data.train, place=self._num_joined)
        share.draw_ahead(trial.spec for trial in preparation.proposals.first)

    def join(self, preparation: Preparation, run: OpenRun, *, checkpoint: Manifest | None = None) -> TaskRun:
        """Take in a task; it trains from the next step boundary on.

        Args:
            preparation: The task, with the sizes of this session.
            run: Its run, whose record ends at ``checkpoint``.
            checkpoint: Where the run stands; None for a new one.
        """
        preparation, referred = with_group_reference(preparation, self._executor)
        share = ExecutorShare(self._executor, rows=preparation.inputs.data.train, place=self._num_joined)
        member = TaskRun(preparation, share, run, arrival=self._num_joined)
        self._members[member.supervisor] = member
        try:
            if checkpoint is None:
                self.draw_ahead(preparation)
            else:
                # decisions first: they say which of the checkpoint's trials still train
                member.replay()
                member.supervisor.restore(checkpoint)
            member.measure_base()
        except BaseException:
            self._vacate(member.supervisor)
            del self._members[member.supervisor]
            member.close_trackers()
            raise
        notes = () if self._num_joined else self._executor.notes
        for note in (*notes, *(() if referred is None else (referred,))):
            run.watcher.note(note)
        self._num_joined += 1
        self._joining.append(member.supervisor)
        return member

    def leave(self, member: TaskRun) -> None:
        """Save a task's state and let the others train on; to be called at a step boundary, by ``welcome``."""
        supervisor = member.supervisor
        try:
            if supervisor in self._joining:
                self._joining.remove(supervisor)
                supervisor.checkpoint()
                self._vacate(supervisor)
            else:
                assert self._loop is not None, "tasks leave while others train"
                self._loop.leave(supervisor)
            member.was_interrupted()
        finally:
            del self._members[supervisor]
            member.close_trackers()

    def run(
        self,
        *,
        welcome: Callable[[], None] = lambda: None,
        finish: Callable[[TaskRun], None] | None = None,
        fail: Callable[[TaskRun, Exception], None] | None = None,
    ) -> None:
        """Train until every task has ended, and write their results, and then what no result needs.

        Args:
            welcome: Called at each step boundary; may call :meth:`join` and :meth:`leave`.
            finish: Calls :meth:`finish` and deals with its errors; None lets them pass.
            fail: Receives a task that an error of its own ended, while the others train on; None: every error ends all.

        Raises:
            KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP; everything is saved.
            CallbackError: a function of the caller failed; everything is saved.
        """
        try:
            self._train(welcome=welcome, finish=finish or self.finish, fail=fail)
        except BaseException:
            for behind, _ in self._behind.values():
                behind.give_up()
            raise
        else:
            is_waiting = True
            for behind, _ in self._behind.values():
                # one Ctrl-C is for all tasks
                is_waiting = is_waiting and behind.wait()
                if not is_waiting:
                    behind.give_up()
        finally:
            self._settle_behind()

    def _train(
        self,
        *,
        welcome: Callable[[], None],
        finish: Callable[[TaskRun], None],
        fail: Callable[[TaskRun, Exception], None] | None,
    ) -> None:
        stop, ended, failed = StopRequest(), list[TaskRun](), list[CallbackError]()

        def record(passes: PassFacts) -> None:
            for member in (*self._members.values(), *ended):
                member.run.store.set_facts(passes=passes)

        def finish_ended() -> None:
            if ended:
                # the report shows what passes took up to the end
                memory.record()
            while ended:
                finish(ended.pop(0))

        def at_boundary() -> None:
            finish_ended()
            self._settle_behind()
            welcome()
            while self._joining:
                loop.join(self._joining.pop(0))
            for supervisor, member in [*self._members.items()]:
                try:
                    member.between_steps()
                except CallbackError as error:
                    # the loop saves all states before it ends
                    failed.append(error)
                    stop.set()
                except Exception as error:
                    if fail is None or is_executor_wide(error):
                        raise
                    loop.fail(supervisor, error)
            self._divide_device_memory()
            memory.took()

        def failed_alone(supervisor: Supervisor, error: Exception) -> None:
            assert fail is not None, "the loop was given this function"
            member = self._members.pop(supervisor)
            member.close_trackers()
            fail(member, error)

        # a resumed run keeps the budgets that an earlier process lowered; new ones have none
        before = next((member.run.store.reader.facts().passes for member in self._members.values()), PassFacts())
        memory = MemoryWatch(
            self._executor, self._plan, before=before, record=record, note=self._note, clock=self._clock
        )
        loop = self._loop = Session(
            self._executor,
            capacity=self.sizes.capacity,
            clock=self._clock,
            stop_requested=stop.is_set,
            at_boundary=at_boundary,
            on_end=lambda supervisor: ended.append(self._members.pop(supervisor)),
            on_failure=None if fail is None else failed_alone,
            window_steps=self._window_steps,
            ahead_steps=self._ahead_steps,
        )
        try:
            with stopping_gently(stop), _completing(ended):
                loop.run()
                # asked while the last step was taken: the comparison that follows may take minutes
                if stop.is_set():
                    raise StopRequestedError
        except StopRequestedError:
            memory.record()
            for member in (*self._members.values(), *ended):
                member.was_interrupted()
            if failed:
                raise failed[0] from failed[0].__cause__
            raise stop.error() from None
        except RankLostError:
            # ranks that ran out of memory together go on in smaller passes
            memory.took()
            raise
        finally:
            # after an error also those that ended in the last step: a resume writes their results
            for member in (*self._members.values(), *ended):
                member.close_trackers()
            self._members.clear()
            self._joining.clear()
            self._loop = None
        # outside of the gentle stop: Ctrl-C ends the writing at once, and a resume writes what is missing
        with _completing(ended):
            finish_ended()

    def finish(self, member: TaskRun, *, then: Callable[[], None] = lambda: None) -> None:
        """Write the results of a task that has ended, and begin with what no result needs.

        Args:
            then: Called once that is written, too, while others may train on; not after an error.
        """
        try:
            member.finish(was_alone=self._num_joined == 1, make_room=self._give_way)
        except StorageFullError:
            raise
        except RunStateError:
            # without a best adapter as well: what there is can be exported
            member.write_behind().wait()
            raise
        self._behind[member] = (member.write_behind(), then)
        self._settle_behind()

    def _settle_behind(self) -> None:
        for member, (behind, then) in list(self._behind.items()):
            if behind.is_done():
                del self._behind[member]
                then()

    def trained_to(self, member: TaskRun, steps: Mapping[int, int]) -> Iterator[tuple[int, Tensor, float]]:
        """Train trials of a task that has ended once more; yield each after ``steps``, with its weights [r, D].

        Nothing is recorded. The third value is the largest difference between a step's loss and that on record.
        """
        self._joining.clear()
        yield from trained_to(member, self._executor, steps)

    def close(self) -> None:
        """End the processes of other ranks, where there are any."""
        self._executor.close()

    def vacate(self) -> None:
        """Free the slots that a stop left taken; the states are saved."""
        for key in self._executor.resident:
            self._executor.drop(key)

    def _vacate(self, supervisor: Supervisor) -> None:
        for trial_id in supervisor.share.resident:
            supervisor.share.drop(trial_id)

    def _divide_device_memory(self) -> None:
        """Give each task an equal part of the device's memory for parked states, when tasks have come or gone."""
        # one whose checkpoints are on their way keeps its part until they are written
        sharing = (*self._members.values(), *self._behind)
        if sharing == self._sharing:
            return
        self._sharing = sharing
        for member in self._members.values():
            member.run.state_store.limit_device(self.sizes.device_state_bytes // len(sharing))

    def _give_way(self) -> bool:
        """Park a trial of the bank, of the task that joined last; return False if there is none."""
        for supervisor in reversed(self._members):
            if resident := supervisor.share.resident:
                supervisor.evict(resident[-1])
                return True
        return False

    def _make_room(self) -> bool:
        """Move parked states of all tasks off the device."""
        runs = (*self._members.values(), *self._behind)
        did_leave = [member.run.state_store.leave_device() for member in runs]
        return any(did_leave)

    def _note(self, line: str) -> None:
        for member in self._members.values():
            member.run.watcher.note(line)


@contextlib.contextmanager
def _completing(ended: Sequence[TaskRun]) -> Iterator[None]:
    """Complete the last checkpoints of tasks that an error inside keeps from being finished."""
    try:
        yield
    except BaseException:
        for member in ended:
            # a full disk is no reason to hide the error
            with contextlib.suppress(StorageFullError):
                member.supervisor.complete_last_checkpoint()
        raise
