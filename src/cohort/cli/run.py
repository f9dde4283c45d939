"""``cohort run``: several tasks on the GPUs there are."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from cohort.cli.exits import EXIT_FAILED, exits
from cohort.cli.options import DebugOption, JsonOption, QueueDirOption

__all__ = ["Policy", "go_on", "run"]


class Policy(Enum):
    """How tasks are placed."""

    PLANNED = "planned"
    FCFS = "fcfs"
    SJF = "sjf"
    LJF = "ljf"


def run(
    tasks: Annotated[
        list[Path] | None,
        typer.Argument(metavar="TASK.yaml...", help="Task files; none goes on with the queue.", show_default=False),
    ] = None,
    output: QueueDirOption = Path("runs"),
    gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", help="GPUs to use, one task on each.  [default: all]")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="Work on the CPU, N tasks at a time.")
    ] = None,
    policy: Annotated[
        Policy,
        typer.Option(
            "--policy", help="planned: the shortest plan found; else first come, shortest or longest first, to compare."
        ),
    ] = Policy.PLANNED,
    keep_open: Annotated[
        bool, typer.Option("--keep-open", help="Wait for `cohort queue add` when all tasks have ended.")
    ] = False,
    stall_limit: Annotated[
        float, typer.Option("--stall-limit", metavar="SECONDS", help="A task that stands still so long is restarted.")
    ] = 900.0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Tune several tasks, placed on the GPUs there are; the same command again goes on where it was.

    Every task's run directory is DIR/TASK. `cohort queue` adds and removes tasks meanwhile, `cohort status DIR` shows
    them.
    """
    with exits(as_json=as_json, debug=debug, resume=output):
        from cohort.core.errors import InputError, Problem
        from cohort.engine.task_queue.expectation import Expectation, hardware_of_slots
        from cohort.engine.task_queue.slot_choice import choose_slots
        from cohort.engine.task_queue.working import add_to_queue, find_queue

        if stall_limit <= 0:
            raise InputError(
                Problem(where="--stall-limit", found=f"{stall_limit:g}", allowed="above 0", mend="Leave it out.")
            )
        slots = choose_slots(gpus=gpus, workers=workers)
        expect = Expectation(output, hardware_of_slots(slots))
        if tasks or not find_queue(output):
            if not tasks:
                mend = "Name the task files: cohort run TASK.yaml ..."
                raise InputError(
                    Problem(where="cohort run", found="no task", allowed="one or more task files", mend=mend)
                )
            add_to_queue(tasks, output, expect=expect)
        go_on(
            output,
            gpus=gpus,
            workers=workers,
            policy=policy,
            keep_open=keep_open,
            stall_limit=stall_limit,
            as_json=as_json,
        )


def go_on(
    directory: Path,
    *,
    gpus: int | None,
    workers: int | None,
    policy: Policy,
    keep_open: bool,
    stall_limit: float,
    as_json: bool,
) -> None:
    """Work off the queue in ``directory`` and print what its tasks came to; exit with 1 if any has no result."""
    from cohort.cli.queue_progress import watching_queue
    from cohort.cli.queue_table import print_queue
    from cohort.engine.task_queue.head import HeadSettings
    from cohort.engine.task_queue.queue_status import read_queue_status
    from cohort.engine.task_queue.seats import Limits
    from cohort.engine.task_queue.slot_choice import choose_slots
    from cohort.engine.task_queue.working import open_queue, work_off
    from cohort.scheduling.baselines import ListPolicy

    policies = {
        Policy.PLANNED: None,
        Policy.FCFS: ListPolicy.FIRST_COME,
        Policy.SJF: ListPolicy.SHORTEST_FIRST,
        Policy.LJF: ListPolicy.LONGEST_FIRST,
    }
    settings = HeadSettings(policy=policies[policy], keeps_open=keep_open, limits=Limits(still_seconds=stall_limit))
    slots = choose_slots(gpus=gpus, workers=workers)
    with open_queue(directory) as store:
        wish = {"gpus": gpus, "workers": workers, "policy": policy.value, "stall_limit": stall_limit}
        store.set_facts({"wish": wish})
    with watching_queue() as watcher:
        work_off(directory, slots=slots, settings=settings, watcher=watcher)
    status = read_queue_status(directory)
    print_queue(status, as_json=as_json)
    if not status.are_all_done:
        raise typer.Exit(EXIT_FAILED)
