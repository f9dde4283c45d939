"""A session: an executor of one base model, and the tasks that train in it, each with a run of its own.

Usually there is one task. Several share the executor when their base model and their adapted linears are the same: then
the trials of all step together, a task of higher priority takes slots at the next step boundary, and what is left over
goes to the next. A trial's bits do not depend on the others, so a task ends as it would have alone. A task may come,
leave or fail while the others train, and each run is resumed by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

from cohort.core.clock import Clock
from cohort.core.errors import RankLostError
from cohort.core.process.interrupts import StopRequest, interrupting, stopping_gently
from cohort.engine.callbacks.callback_caller import CallbackError
from cohort.engine.ended_tasks import EndedTasks
from cohort.engine.intake import Intake
from cohort.engine.session_memory import SessionMemory
from cohort.engine.session_task import SessionTask, TaskEnd, task_error
from cohort.engine.shared_base import SharedBase
from cohort.engine.train.isolation import is_executor_wide
from cohort.engine.train.open_run import RunOptions
from cohort.engine.train.step_loop import StepLoop, StopRequestedError
from cohort.engine.train.supervisor import Supervisor
from cohort.prepare.preparation import Preparation
from cohort.ranks.training_executor import TrainingExecutor
from cohort.runs.results.task_result import TaskResult, TasksFailedError, read_task_result

__all__ = ["Session"]


class Session(Intake):
    """Trains tasks that share a base model and its adapted linears in one executor.

    :meth:`submit`, :meth:`resume` and :meth:`leave` may be called from any thread, also during :meth:`run`.
    """

    def __init__(
        self,
        *,
        options: RunOptions | None = None,
        clock: Clock | None = None,
        num_gpus: int | None = None,
        is_shared: bool = True,
        on_end: Callable[[TaskEnd], None] = lambda _: None,
        base: SharedBase | None = None,
    ) -> None:
        """Start without a task.

        Args:
            options: How all runs are carried out.
            clock: Measures all runs' time.
            num_gpus: Replaces the tasks' own: 0 trains on the CPU; None leaves it to the tasks.
            is_shared: Whether tasks may share the executor, which has one GPU then; one task alone may have several.
            on_end: Called when a task has ended and its run directory is free, while others may train on.
            base: A base model that is loaded already and that others compute with, too; the first task loads one where
                it is None.
        """
        super().__init__(options=options, clock=clock, num_gpus=num_gpus, is_shared=is_shared, base=base)
        self._on_end = on_end
        # the executor, and the task for which it was built: the one with the largest adapters
        self._executor: TrainingExecutor | None = None
        self._largest: Preparation | None = None
        self._loop: StepLoop | None = None
        self._num_joined = 0
        # tasks that hold their runs, and of these: in training, and with trials that have all ended
        self._taken: list[SessionTask] = []
        self._training: dict[Supervisor, SessionTask] = {}
        self._ended = EndedTasks(self._end)
        self._errors: list[Exception] = []

    @property
    def free_share(self) -> float:
        """Share of a step's tokens that the tasks leave free while none of their trials waits; for any thread."""
        return 0.0 if self._loop is None else self._loop.free_share

    @interrupting()
    def run(self) -> list[TaskResult]:
        """Train until every submitted task has ended; return their results in the order of submission.

        Raises:
            TasksFailedError: some tasks failed, or could not begin; it carries the results of the others.
            KeyboardInterrupt: interrupted, with everything saved; each run can be resumed by itself. A task that is
                submitted after that trains at the next call.
            CallbackError: a function of the caller failed; everything is saved.
        """
        self.train()
        # one that was handed in when the last had ended waits for the next call
        done = [task for task in self._tasks.values() if task.is_done]
        results = {task.name: read_task_result(task.directory, name=task.name) for task in done}
        if self._failures:
            raise TasksFailedError(results=results, failures=self._failures)
        return list(results.values())

    def train(self) -> list[Exception]:
        """Train until every submitted task has ended, and write their results, and then what no result needs.

        Returns:
            What ended tasks of this call, in order; empty where all have results.

        Raises:
            KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP; everything is saved.
            CallbackError: a function of the caller failed; everything is saved.
            Exception: what leaves no task able to go on.
        """
        self._errors = []
        try:
            # directories before the executor and records after it: if a bank does not fit, a resume may choose others
            waiting = [task for task in self._take_submitted() if self._stays(task) and self._begins(task, task.claim)]
            self._open_executor(waiting)
            if self._executor is not None and self._largest is not None:
                self._train(self._executor, self._largest, waiting)
                self._ended.wait_for_spares()
        except BaseException:
            self._ended.give_up_spares()
            raise
        finally:
            self._ended.settle_spares()
            self._ended.writing.clear()
            for task in self._taken:
                task.give_back()
            self._taken.clear()
        return self._errors

    def close(self) -> None:
        """End the processes of other ranks, and give back the directories of tasks that were handed in and not joined.

        Their runs can be resumed.
        """
        for task in super()._take_submitted():
            task.give_back()
        if self._executor is not None:
            self._executor.close()

    def _take_submitted(self) -> list[SessionTask]:
        taken = super()._take_submitted()
        self._taken += taken
        return taken

    def _open_executor(self, waiting: list[SessionTask]) -> None:
        """Build the executor, as large as the task with the largest adapters asks for; the others wait their turn."""
        with self._submitting:
            if self._executor is not None:
                return
            # those that came meanwhile found no executor whose sizes they would have to fit
            waiting += self._take_submitted()
            if waiting:
                prepared = [task.preparation for task in waiting]
                self._largest = max(prepared, key=lambda own: own.sizes.capacity.rank_rows)
                self._executor = self._largest.build_executor()
                self._executor.reliefs.append(self._make_room)
                if self._base is not None:
                    self._executor.memory.before_pass = self._base.before_pass
                self._sizes = self._largest.sizes

    def _train(self, executor: TrainingExecutor, largest: Preparation, waiting: Sequence[SessionTask]) -> None:
        stop, refused = StopRequest(), list[CallbackError]()

        def at_boundary() -> None:
            self._finish_ended(memory)
            self._ended.settle_spares()
            self._welcome(executor, loop)
            for supervisor, task in [*self._training.items()]:
                try:
                    task.run.between_steps()
                except CallbackError as error:
                    # the loop saves all states before it ends
                    refused.append(error)
                    stop.set()
                except Exception as error:
                    if is_executor_wide(error):
                        raise
                    loop.fail(supervisor, error)
            memory.at_boundary()

        loop = self._loop = StepLoop(
            executor,
            capacity=largest.sizes.capacity,
            clock=self._clock,
            stop_requested=stop.is_set,
            at_boundary=at_boundary,
            on_end=lambda supervisor: self._ended.waiting.append(self._training.pop(supervisor)),
            on_failure=lambda supervisor, error: self._end(self._training.pop(supervisor), error=error),
            window_steps=largest.window_steps,
            ahead_steps=largest.ahead_steps,
            turns=None if self._base is None else self._base.turns,
        )
        try:
            # slots that a stop left taken; the states are saved
            for key in executor.resident:
                executor.drop(key)
            for task in waiting:
                self._join(task, executor, loop)
            memory = SessionMemory(
                executor, largest, self._training, self._ended.waiting, self._ended.writing, clock=self._clock
            )
            self._step(loop, memory, stop=stop, refused=refused)
        finally:
            # after an error also those that ended in the last step: a resume writes their results
            for task in (*self._training.values(), *self._ended.waiting):
                task.run.abandon()
            self._training.clear()
            self._ended.waiting.clear()
            self._loop = None

    def _step(
        self, loop: StepLoop, memory: SessionMemory, *, stop: StopRequest, refused: Sequence[CallbackError]
    ) -> None:
        """Run the loop until all tasks have ended or are saved."""
        try:
            with stopping_gently(stop), self._ended.completing():
                loop.run()
                # asked while the last step was taken: the comparison that follows may take minutes
                if stop.is_set():
                    raise StopRequestedError
        except StopRequestedError:
            memory.record()
            for task in (*self._training.values(), *self._ended.waiting):
                task.run.was_interrupted()
            if refused:
                raise refused[0] from refused[0].__cause__
            raise stop.error() from None
        except RankLostError:
            # ranks that ran out of memory together go on in smaller passes
            memory.took()
            raise
        # outside of the gentle stop: Ctrl-C ends the writing at once, and a resume writes what is missing
        with self._ended.completing():
            self._finish_ended(memory)

    def _welcome(self, executor: TrainingExecutor, loop: StepLoop) -> None:
        """Let tasks go that were asked to leave, and others join."""
        # leaving first, so that one which comes back at once finds the others
        for supervisor, task in [*self._training.items()]:
            if task.name in self._leaving:
                self._let_go(supervisor, task, loop)
        for task in self._take_submitted():
            self._join(task, executor, loop)

    def _stays(self, task: SessionTask) -> bool:
        """Return whether a task is to begin; one that was asked to leave before leaves nothing behind."""
        if task.name in self._leaving:
            self._end(task, has_left=True)
            return False
        return True

    def _begins(self, task: SessionTask, act: Callable[[], object]) -> bool:
        """Do something to begin a task; return False if an error ended it, in which the others have no part."""
        try:
            act()
        except Exception as error:
            if is_executor_wide(error):
                raise
            self._end(task, error=error, what="begin")
            return False
        return True

    def _join(self, task: SessionTask, executor: TrainingExecutor, loop: StepLoop) -> None:
        if not self._stays(task):
            return
        join = partial(
            task.join,
            executor,
            sizes=self._sizes,
            place=self._num_joined,
            num_tasks=len(self._tasks),
            turn=nullcontext if self._base is None else partial(self._base.turns.other, task.tenant),
        )
        if self._begins(task, join):
            self._num_joined += 1
            self._training[task.run.supervisor] = task
            loop.join(task.run.supervisor, tenant=task.tenant)

    def _let_go(self, supervisor: Supervisor, task: SessionTask, loop: StepLoop) -> None:
        """Save the state of a task that was asked to leave."""
        error: Exception | None = None
        try:
            loop.leave(supervisor)
            task.run.was_interrupted()
        except Exception as found:
            error = found
            if is_executor_wide(found):
                raise
        del self._training[supervisor]
        self._end(task, error=error, has_left=error is None)

    def _finish_ended(self, memory: SessionMemory) -> None:
        """Write the results of tasks whose trials have all ended, and begin with what no result needs."""
        if self._ended.waiting:
            # the report shows what passes took up to the end
            memory.record()
        while self._ended.waiting:
            task = self._ended.waiting.pop(0)
            try:
                task.finish(was_alone=self._is_alone, make_room=self._give_way)
            except Exception as error:
                if is_executor_wide(error):
                    raise
                self._end(task, error=error)
            else:
                self._ended.writing.append(task)
                self._ended.settle_spares()

    @property
    def _is_alone(self) -> bool:
        """Whether one task had executor and base model to itself, so that its steps tell what such steps cost."""
        return self._num_joined == 1 and self._base is None

    def _end(
        self, task: SessionTask, *, error: Exception | None = None, what: str = "go on", has_left: bool = False
    ) -> None:
        """Give back what a task held, and say how it ended; ``what`` the error kept it from."""
        if task.has_joined and (error is not None or has_left):
            task.run.abandon()
        task.give_back()
        self._taken.remove(task)
        self._leaving.discard(task.name)
        task.is_done = error is None and not has_left
        if not task.is_done or self._base is not None:
            # it may come back in this session; one on a base that stays lives on and keeps nothing of what is done
            del self._tasks[task.name]
        found = None
        if error is not None:
            self._errors.append(error)
            found = self._failures[task.name] = task_error(task.directory, error, what)
        self._on_end(TaskEnd(name=task.name, error=found, has_left=has_left))

    def _give_way(self) -> bool:
        """Park a trial of the bank, of the task that joined last; return False if there is none."""
        for supervisor in reversed(self._training):
            if resident := supervisor.share.resident:
                supervisor.evict(resident[-1])
                return True
        return False

    def _make_room(self) -> bool:
        """Move parked states of all tasks off the device."""
        tasks = (*self._training.values(), *self._ended.writing)
        did_leave = [task.run.run.state_store.leave_device() for task in tasks]
        return any(did_leave)
