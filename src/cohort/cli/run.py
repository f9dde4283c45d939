"""``cohort run``: several tasks on the GPUs there are."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from cohort.cli.arguments.options import DebugOption, JsonOption, MaxGpusOption, QueueDirOption
from cohort.cli.exits import EXIT_FAILED, EXIT_WORSE, exits

if TYPE_CHECKING:
    from cohort.machine.cluster.worker_pool import WorkerPool
    from cohort.scheduling.cost.hardware import Hardware
    from cohort.task_queue.expected_time import ExpectedTime

__all__ = ["continue_queue", "run"]

Policy = Literal["planned", "fcfs", "sjf", "ljf"]
STALL_LIMIT_SECONDS = 900.0
_StallOption = Annotated[
    float, typer.Option("--stall-limit", metavar="SECONDS", help="Restart a task after this long without progress.")
]
_ShareOption = Annotated[
    bool,
    typer.Option(
        "--share-gpu/--no-share-gpu",
        help="Let tasks on one base model train together on a GPU where that is predicted to be faster.",
    ),
]


def run(
    tasks: Annotated[
        list[Path] | None,
        typer.Argument(metavar="TASK.yaml...", help="Task files; none continues the queue.", show_default=False),
    ] = None,
    output: QueueDirOption = Path("runs"),
    gpus: Annotated[int | None, typer.Option("--gpus", metavar="N", help="GPUs to use.  [default: all]")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="Run on the CPU instead, on N workers.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option("--ray", metavar="ADDRESS", help="Run on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT."),
    ] = None,
    policy: Annotated[
        Policy,
        typer.Option("--policy", help="The shortest plan found; or first come, shortest or longest first, to compare."),
    ] = "planned",
    max_gpus_per_task: MaxGpusOption = None,
    keep_open: Annotated[
        bool, typer.Option("--keep-open", help="Wait for `cohort queue add` when all tasks have ended.")
    ] = False,
    stall_limit: _StallOption = STALL_LIMIT_SECONDS,
    share_gpu: _ShareOption = True,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Tune several tasks on the GPUs of this machine. After a stop, the same command continues.

    Meanwhile, `cohort queue` adds and removes tasks, and `cohort status DIR` shows them.
    """
    with exits(as_json=as_json, debug=debug, resume=output, is_again=True):
        from cohort.core.errors import InputError, Problem
        from cohort.machine.local_slots import refuse_more_workers_than_cores
        from cohort.task_queue.operations import add_to_queue
        from cohort.task_queue.store import find_queue, queue_holder
        from cohort.task_queue.workers.pool import PoolRequest, open_pool

        _refuse_numbers(stall_limit=stall_limit, max_gpus_per_task=max_gpus_per_task)
        if not tasks and not find_queue(output):
            hint = "Name the task files: cohort run TASK.yaml ..."
            raise InputError(Problem(where="cohort run", found="no task", allowed="one or more task files", hint=hint))
        if tasks and find_queue(output) and queue_holder(output) is not None:
            _add_to_running_queue(tasks, output, as_json=as_json)
            return
        if workers is not None and ray is None:
            refuse_more_workers_than_cores(workers)
        places = PoolRequest(gpus=gpus, workers=workers, ray=ray)
        # before the tasks are added: without a usable GPU nothing is written
        pool, hardware = open_pool(places, output)
        expect = _expected_time(output, pool, hardware, most_gpus=max_gpus_per_task)
        if tasks:
            add_to_queue(tasks, output, expect=expect)
        if not keep_open:
            _note_if_ended(output)
        request = {
            **places.to_json(),
            "policy": policy,
            "stall_limit": stall_limit,
            "max_gpus_per_task": max_gpus_per_task,
            "share_gpu": share_gpu,
        }
    with exits(as_json=as_json, debug=debug, resume=output):
        _run_queue(output, pool, expect=expect, request=request, keep_open=keep_open, as_json=as_json)


def _has_ended(directory: Path) -> bool:
    from cohort.task_queue.store import open_queue, queue_holder

    with open_queue(directory) as store:
        return not store.has_open_tasks() and queue_holder(directory) is None


def _note_if_ended(directory: Path) -> None:
    if _has_ended(directory):
        note = f"all tasks of the queue in {directory} have ended, so nothing is started"
        print(f"note: {note}; to tune one again, choose another directory with -o", file=sys.stderr)


def _add_to_running_queue(tasks: list[Path], directory: Path, *, as_json: bool) -> None:
    from cohort.cli.queue import print_added
    from cohort.task_queue.operations import add_to_queue
    from cohort.task_queue.store import queue_holder

    print_added(add_to_queue(tasks, directory), directory, holder=queue_holder(directory), as_json=as_json)
    if not as_json:
        print(
            "The running queue keeps its settings; this command's options are ignored. "
            f"To watch it: cohort status {directory}"
        )


def continue_queue(directory: Path, *, as_json: bool) -> None:
    """Run the queue in ``directory`` with the settings of the last ``cohort run``."""
    from cohort.core.process.cores import num_cores
    from cohort.task_queue.store import open_queue
    from cohort.task_queue.workers.pool import PoolRequest, open_pool

    with open_queue(directory) as store:
        request = {"policy": get_args(Policy)[0], "stall_limit": STALL_LIMIT_SECONDS, **store.facts().request}
    # a finished queue is shown without starting workers, which would load torch and take a GPU
    if _has_ended(directory):
        _show_queue(directory, as_json=as_json)
        return
    places = PoolRequest(**{name: request.get(name) for name in ("gpus", "workers", "ray")})
    if places.ray is None and places.workers is not None and places.workers > (cores := num_cores()):
        print(f"note: {cores} of {places.workers} workers, as there are no more CPU cores here", file=sys.stderr)
        places = replace(places, workers=cores)
    pool, hardware = open_pool(places, directory)
    expect = _expected_time(directory, pool, hardware, most_gpus=request.get("max_gpus_per_task"))
    request = {**places.to_json(), **request}
    _run_queue(directory, pool, expect=expect, request=request, keep_open=False, as_json=as_json)


def _refuse_numbers(*, stall_limit: float, max_gpus_per_task: int | None) -> None:
    from cohort.core.errors import InputError, Problem
    from cohort.core.setting_fields import MOST_NUMBER, number_words

    found = []
    # compared so that NaN is refused as well
    if not 0 < stall_limit <= MOST_NUMBER:
        allowed = number_words(minimum=None)
        found.append(("--stall-limit", f"{stall_limit:g}", allowed))
    if max_gpus_per_task is not None and max_gpus_per_task < 1:
        found.append(("--max-gpus-per-task", str(max_gpus_per_task), "1 or more"))
    if found:
        hint = "Leave the option out."
        raise InputError(
            [Problem(where=where, found=value, allowed=allowed, hint=hint) for where, value, allowed in found]
        )


def _expected_time(directory: Path, pool: WorkerPool, hardware: Hardware, *, most_gpus: int | None) -> ExpectedTime:
    from cohort.task_queue.expected_time import ExpectedTime
    from cohort.task_queue.workers.pool import most_slots_of_node

    return ExpectedTime(directory, hardware, slots_of_node=most_slots_of_node(pool), most_gpus=most_gpus)


def _run_queue(
    directory: Path,
    pool: WorkerPool,
    *,
    expect: ExpectedTime,
    request: dict[str, Any],
    keep_open: bool,
    as_json: bool,
) -> None:
    from cohort.cli.tables.queue_table import QUEUE_VIEW
    from cohort.cli.terminal.progress import watching
    from cohort.engine.train.open_run import RunOptions
    from cohort.scheduling.placement.task_order import ListPolicy
    from cohort.task_queue.operations import work_off
    from cohort.task_queue.settings import DispatcherSettings, Limits
    from cohort.task_queue.store import open_queue, queue_holder

    policies = (None, ListPolicy.FIRST_COME, ListPolicy.SHORTEST_FIRST, ListPolicy.LONGEST_FIRST)
    settings = DispatcherSettings(
        policy=dict(zip(get_args(Policy), policies, strict=True))[request["policy"]],
        keeps_open=keep_open,
        options=RunOptions(share_gpu=request["share_gpu"]),
        limits=Limits(still_seconds=request["stall_limit"]),
    )
    # a process that runs the queue already keeps its own settings; work_off refuses below, with its name
    if queue_holder(directory) is None:
        with open_queue(directory) as store:
            store.set_facts(request=request)
    with watching(QUEUE_VIEW) as watcher:
        work_off(directory, pool, expect=expect, work=expect.work, settings=settings, watcher=watcher)
    _show_queue(directory, as_json=as_json)


def _show_queue(directory: Path, *, as_json: bool) -> None:
    from cohort.cli.tables.queue_table import print_queue
    from cohort.task_queue.page import write_queue_page
    from cohort.task_queue.status import read_queue_status

    write_queue_page(directory)
    status = read_queue_status(directory)
    print_queue(status, as_json=as_json)
    if not status.are_all_done:
        raise typer.Exit(EXIT_FAILED)
    if status.worse:
        raise typer.Exit(EXIT_WORSE)
