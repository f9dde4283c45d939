"""``cohort run``: several tasks on the GPUs there are."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cohort.cli.exits import EXIT_FAILED, exits
from cohort.cli.options import DebugOption, JsonOption, QueueDirOption

if TYPE_CHECKING:
    from cohort.cluster.worker_pool import WorkerPool
    from cohort.task_queue.records import QueuedTask

__all__ = ["Policy", "go_on_as_before", "run"]

STALL_LIMIT_SECONDS = 900.0


class Policy(Enum):
    """How tasks are placed."""

    PLANNED = "planned"
    FCFS = "fcfs"
    SJF = "sjf"
    LJF = "ljf"


def _read_policy(text: str) -> Policy:
    from cohort.core.errors import InputError, Problem

    try:
        return Policy(text)
    except ValueError:
        raise InputError(
            Problem(
                where="--policy",
                found=text,
                allowed="planned | fcfs (first come) | sjf (shortest first) | ljf (longest first)",
                hint="Leave it out for the shortest plan found.",
            )
        ) from None


Gpus = Annotated[int | None, typer.Option("--gpus", metavar="N", help="GPUs to use, one task on each.  [default: all]")]
Workers = Annotated[int | None, typer.Option("--workers", metavar="N", help="Work on the CPU, N tasks at a time.")]
Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="Work on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT."),
]


def run(
    tasks: Annotated[
        list[Path] | None,
        typer.Argument(metavar="TASK.yaml...", help="Task files; none goes on with the queue.", show_default=False),
    ] = None,
    output: QueueDirOption = Path("runs"),
    gpus: Gpus = None,
    workers: Workers = None,
    ray: Ray = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            metavar="planned|fcfs|sjf|ljf",
            help="planned: the shortest plan found; else first come, shortest or longest first, to compare.",
        ),
    ] = Policy.PLANNED.value,
    keep_open: Annotated[
        bool, typer.Option("--keep-open", help="Wait for `cohort queue add` when all tasks have ended.")
    ] = False,
    stall_limit: Annotated[
        float, typer.Option("--stall-limit", metavar="SECONDS", help="A task that stands still so long is restarted.")
    ] = STALL_LIMIT_SECONDS,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Tune several tasks, placed on the GPUs there are; the same command again goes on where it was.

    Every task's run directory is DIR/TASK. `cohort queue` adds and removes tasks meanwhile, `cohort status DIR` shows
    them.
    """
    with exits(as_json=as_json, debug=debug, resume=output):
        from cohort.core.errors import InputError, Problem
        from cohort.task_queue.expected_time import ExpectedTime
        from cohort.task_queue.operations import add_to_queue, find_queue, queue_holder
        from cohort.task_queue.pool import PoolRequest, open_pool

        placed_by = _read_policy(policy)
        if stall_limit <= 0:
            raise InputError(
                Problem(where="--stall-limit", found=f"{stall_limit:g}", allowed="above 0", hint="Leave it out.")
            )
        if not tasks and not find_queue(output):
            hint = "Name the task files: cohort run TASK.yaml ..."
            raise InputError(Problem(where="cohort run", found="no task", allowed="one or more task files", hint=hint))
        if tasks and find_queue(output) and queue_holder(output) is not None:
            _add_to_live_queue(tasks, output, as_json=as_json)
            return
        request = PoolRequest(gpus=gpus, workers=workers, ray=ray)
        pool, hardware = open_pool(request, output)
        expect = ExpectedTime(output, hardware)
        if tasks:
            add_to_queue(tasks, output, expect=expect)
        go_on(
            output,
            pool,
            expect=expect,
            request={**request.to_json(), "policy": placed_by.value, "stall_limit": stall_limit},
            keep_open=keep_open,
            as_json=as_json,
        )


def _add_to_live_queue(tasks: list[Path], directory: Path, *, as_json: bool) -> None:
    """Add tasks to a queue that another process works off, and say that this is all."""
    from cohort.cli.queue import print_added
    from cohort.task_queue.operations import add_to_queue, queue_holder

    print_added(add_to_queue(tasks, directory), directory, holder=queue_holder(directory), as_json=as_json)
    if not as_json:
        print(f"it goes on as it was begun, whatever this command says of it; to look on: cohort status {directory}")


def go_on_as_before(directory: Path, *, as_json: bool) -> None:
    """Work off the queue in ``directory`` as the last ``cohort run`` did."""
    from cohort.task_queue.expected_time import ExpectedTime
    from cohort.task_queue.operations import open_queue, queue_holder
    from cohort.task_queue.pool import PoolRequest, open_pool

    with open_queue(directory) as store:
        request = {
            "policy": Policy.PLANNED.value,
            "stall_limit": STALL_LIMIT_SECONDS,
            # older queues recorded it as "wish"
            **store.facts().get("request", store.facts().get("wish", {})),
        }
        has_work = store.has_open_tasks()
    if not has_work and queue_holder(directory) is None:
        _show(directory, as_json=as_json)
        return
    places = PoolRequest(**{name: request.get(name) for name in ("gpus", "workers", "ray")})
    pool, hardware = open_pool(places, directory)
    expect = ExpectedTime(directory, hardware)
    go_on(directory, pool, expect=expect, request={**places.to_json(), **request}, keep_open=False, as_json=as_json)


def go_on(
    directory: Path,
    pool: WorkerPool,
    *,
    expect: Callable[[QueuedTask], float],
    request: dict[str, Any],
    keep_open: bool,
    as_json: bool,
) -> None:
    """Work off the queue in ``directory`` and print what its tasks came to; exit with 1 if any has no result."""
    from cohort.cli.queue_progress import watching_queue
    from cohort.scheduling.placement.baselines import ListPolicy
    from cohort.task_queue.head_settings import HeadSettings
    from cohort.task_queue.operations import open_queue, queue_holder, work_off
    from cohort.task_queue.worker_slots import Limits

    policies = {
        Policy.PLANNED: None,
        Policy.FCFS: ListPolicy.FIRST_COME,
        Policy.SJF: ListPolicy.SHORTEST_FIRST,
        Policy.LJF: ListPolicy.LONGEST_FIRST,
    }
    settings = HeadSettings(
        policy=policies[Policy(request["policy"])],
        keeps_open=keep_open,
        limits=Limits(still_seconds=request["stall_limit"]),
    )
    if queue_holder(directory) is None:
        # how whoever works it off already was begun is not ours to change
        with open_queue(directory) as store:
            store.set_facts({"request": request})
    with watching_queue() as watcher:
        work_off(directory, pool, expect=expect, settings=settings, watcher=watcher)
    _show(directory, as_json=as_json)


def _show(directory: Path, *, as_json: bool) -> None:
    """Write the queue's page and print what its tasks came to; exit with 1 if any has no result."""
    from cohort.cli.queue_table import print_queue
    from cohort.task_queue.page import write_queue_page
    from cohort.task_queue.status import read_queue_status

    write_queue_page(directory)
    status = read_queue_status(directory)
    print_queue(status, as_json=as_json)
    if not status.are_all_done:
        raise typer.Exit(EXIT_FAILED)
