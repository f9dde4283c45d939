"""The engine: several tasks on one machine, from Python."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cohort.core.clock import Clock
from cohort.core.errors import CohortError, InputError, Problem
from cohort.engine.prepare.inputs import read_inputs
from cohort.engine.shared_session import SharedSession
from cohort.engine.train.progress import ProgressWatcher
from cohort.engine.tune import RunOptions, tune
from cohort.runs.directory import RunDirectory
from cohort.runs.task_result import TaskResult, TasksFailedError, read_task_result
from cohort.task_queue.from_python import run_on_several_gpus
from cohort.tasks.loading import TaskFile
from cohort.tasks.task import Task
from cohort.tuning.early_exit.settings import EarlyExitSettings

__all__ = ["Engine", "Placement", "Schedule"]

# strategies of the documents; what is not "auto" needs several GPUs
_DOCUMENTED_STRATEGIES = ("adapter_parallel", "tensor_parallel", "pipeline_parallel", "replicas")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where and when one task runs.

    Attributes:
        task: Its name.
        order: Place in the queue, from 0; a task begins when the one before has ended.
        num_gpus: GPUs it uses; "auto": one where there is one.
    """

    task: str
    order: int
    num_gpus: int | str


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The order in which an engine runs its tasks: on one machine, one after the other, each with all of it.

    No times are predicted: early exit makes tasks shorter by an amount that nobody knows before.
    """

    placements: tuple[Placement, ...]


class Engine:
    """Runs tasks on this machine."""

    def __init__(self, *, strategy: str = "auto", total_gpus: int | str = "auto") -> None:
        """Choose the machine's share.

        Args:
            strategy: How several GPUs share a task; only "auto" yet.
            total_gpus: GPUs to use; "auto": one where there is one; 0: the CPU. With several, each task gets one, and
                tasks run beside each other.

        Raises:
            InputError: an argument is wrong, or asks for what is not built yet.
        """
        problems = []
        if strategy != "auto":
            is_known = strategy in _DOCUMENTED_STRATEGIES
            problems.append(
                Problem(
                    where="Engine: strategy",
                    found=f"{strategy!r}" + (", documented, but not built yet" if is_known else ""),
                    allowed="'auto'",
                    hint="Leave strategy out.",
                )
            )
        is_count = isinstance(total_gpus, int) and not isinstance(total_gpus, bool) and total_gpus >= 0
        if not is_count and total_gpus != "auto":
            problems.append(
                Problem(
                    where="Engine: total_gpus",
                    found=f"{total_gpus!r}",
                    allowed="'auto', or a whole number of at least 0 (0: the CPU)",
                    hint="Leave total_gpus out, or write 1.",
                )
            )
        if problems:
            raise InputError(problems)
        self._total_gpus = total_gpus

    def schedule(self, tasks: Sequence[Task]) -> Schedule:
        """Return the order in which ``tasks`` will run: as they are given.

        On several GPUs it is the order in which they are submitted; the planner says who runs where, at each event.

        Raises:
            InputError: there are none, two have one name, or one asks for more GPUs than the engine has.
        """
        _require_tasks(tasks)
        return Schedule(
            placements=tuple(
                Placement(task=task.name, order=order, num_gpus=self._gpus_of(task.file))
                for order, task in enumerate(tasks)
            )
        )

    def run(
        self,
        tasks: Sequence[Task],
        schedule: Schedule | None = None,
        early_exit: EarlyExitSettings | None = None,
        *,
        run_directory: str | os.PathLike[str] | None = None,
        watcher: ProgressWatcher | None = None,
        options: RunOptions | None = None,
        clock: Clock | None = None,
    ) -> list[TaskResult]:
        """Tune every task and return one result each, in the order of ``tasks``.

        All tasks are checked, models and rows included, before the first begins.

        Args:
            tasks: What to tune.
            schedule: Of :meth:`schedule`; made here when None.
            early_exit: For the tasks that have no ``early_exit`` of their own.
            run_directory: One task's run directory, or the parent of several, each by its name;
                ``runs/NAME`` when None.
            watcher: Told of progress.
            options: How runs are carried out.
            clock: Of the runs.

        Raises:
            InputError: anything is wrong with any of the tasks, or the schedule is of other tasks.
            TasksFailedError: some of several tasks failed; it carries the results of the others.
            CohortError: the only task failed.
            KeyboardInterrupt: interrupted, with everything saved; :func:`cohort.resume` goes on with a run.
        """
        schedule = schedule or self.schedule(tasks)
        _require_schedule(schedule, tasks)
        files = {task.name: self._file_of(task, early_exit) for task in tasks}
        parent = Path("runs") if run_directory is None else Path(run_directory)
        alone = len(tasks) == 1 and run_directory is not None
        directories = {name: parent if alone else parent / name for name in files}
        _require_inputs(files, directories)
        order = [placement.task for placement in sorted(schedule.placements, key=lambda placement: placement.order)]
        if self._has_several_gpus and len(tasks) > 1:
            failures = run_on_several_gpus(
                {name: files[name] for name in order},
                parent,
                num_gpus=int(self._total_gpus),
                watcher=watcher,
                options=options,
                clock=clock,
            )
            return _results_of(tasks, directories, failures)
        failures = {}
        for name in order:
            try:
                tune(files[name], directories[name], watcher=watcher, options=options, clock=clock)
            except CohortError as error:
                if len(tasks) == 1:
                    raise
                failures[name] = error
        return _results_of(tasks, directories, failures)

    @property
    def _has_several_gpus(self) -> bool:
        return isinstance(self._total_gpus, int) and self._total_gpus > 1

    def session(self, *, options: RunOptions | None = None, clock: Clock | None = None) -> SharedSession:
        """Return a session in which tasks share one base model and train at the same time, the urgent ones first.

        It works on one GPU, also where the engine has several. Hand tasks in with ``submit``, from any thread and also
        while ``run`` is at work.

        Args:
            options: How runs are carried out.
            clock: Of the runs.
        """
        num_gpus = min(self._total_gpus, 1) if isinstance(self._total_gpus, int) else None
        return SharedSession(options=options, clock=clock, num_gpus=num_gpus)

    def _gpus_of(self, file: TaskFile) -> int | str:
        if file.num_gpus == "auto":
            return "auto" if self._has_several_gpus else self._total_gpus
        if isinstance(self._total_gpus, int) and file.num_gpus > self._total_gpus:
            raise InputError(
                Problem(
                    where=file.where("num_gpus"),
                    found=str(file.num_gpus),
                    allowed=f"at most {self._total_gpus}, the engine's total_gpus",
                    hint="Leave num_gpus out, or give the engine more.",
                )
            )
        return file.num_gpus

    def _file_of(self, task: Task, early_exit: EarlyExitSettings | None) -> TaskFile:
        file = task.file if early_exit is None else task.with_early_exit(early_exit)
        return file.model_copy(update={"num_gpus": self._gpus_of(file)})


def _results_of(
    tasks: Sequence[Task], directories: Mapping[str, Path], failures: Mapping[str, CohortError]
) -> list[TaskResult]:
    """Return the results in the order of ``tasks``.

    Raises:
        TasksFailedError: there are failures.
    """
    results = {name: read_task_result(path, name=name) for name, path in directories.items() if name not in failures}
    if failures:
        raise TasksFailedError(results=results, failures=failures)
    return [results[task.name] for task in tasks]


def _require_tasks(tasks: Sequence[Task]) -> None:
    if not tasks:
        raise InputError(
            Problem(where="tasks", found="an empty list", allowed="at least one task", hint="Give a cohort.Task.")
        )
    repeated = [name for name, count in Counter(task.name for task in tasks).items() if count > 1]
    if repeated:
        raise InputError(
            [
                Problem(
                    where="tasks",
                    found=f"two tasks with the name {name!r}",
                    allowed="each name once: it is the name of the run directory",
                    hint="Give them names: cohort.Task(name=..., ...).",
                )
                for name in repeated
            ]
        )


def _require_schedule(schedule: Schedule, tasks: Sequence[Task]) -> None:
    _require_tasks(tasks)
    names, planned = {task.name for task in tasks}, [placement.task for placement in schedule.placements]
    if sorted(names) != sorted(planned):
        raise InputError(
            Problem(
                where="schedule",
                found=f"a schedule of {', '.join(planned) or 'nothing'}",
                allowed=f"a schedule of {', '.join(sorted(names))}",
                hint="Make it with engine.schedule(tasks) from these tasks.",
            )
        )


def _require_inputs(files: dict[str, TaskFile], directories: dict[str, Path]) -> None:
    """Check all tasks before the first one begins, so that nothing wrong shows up after hours."""
    problems: list[Problem] = []
    for name, file in files.items():
        occupied = RunDirectory.find_problem(directories[name])
        try:
            read_inputs(file, also=() if occupied is None else (occupied,))
        except InputError as error:
            several = len(files) > 1
            problems += [replace(p, where=f"{name}: {p.where}") if several else p for p in error.problems]
    if problems:
        raise InputError(problems)
