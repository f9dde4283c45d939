"""``cohort tune``: one task in, the best adapter out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cohort.cli.adapters.publishing import PublishAsOption, PublishOption, announcement
from cohort.cli.arguments.options import DebugOption, JsonOption, LostGpuOption, TaskArgument
from cohort.cli.exits import end_as_worse, ending_imports, exits
from cohort.cli.launched_ranks import (
    launched_ranks,
    most_losses,
    options_with,
    refuse_other_number,
    refuse_own_recovery,
)
from cohort.cli.work_ahead import begin_processes, begin_task
from cohort.core.process.gc_off import imports_uncollected

if TYPE_CHECKING:
    from cohort.engine.train.open_run import RunOptions
    from cohort.engine.train.watching.progress import ProgressWatcher
    from cohort.ranks.launch.launched import LaunchedRanks
    from cohort.runs.directory import RunDirectory
    from cohort.tasks.task_file import TaskFile

__all__ = ["tune"]

OnExisting = Literal["resume", "overwrite", "error"]


def tune(
    context: typer.Context,
    task: TaskArgument,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="RUN_DIR", help="The run's directory.  [default: runs/TASK]"),
    ] = None,
    on_existing: Annotated[
        OnExisting,
        typer.Option(
            "--on-existing", help="If RUN_DIR holds a run: continue it, remove it and start again, or refuse."
        ),
    ] = "error",
    publish: PublishOption = None,
    publish_as: PublishAsOption = None,
    on_lost_gpu: LostGpuOption = "stop",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Find the best adapter for a task.

    All configurations train together on one frozen model; the weak ones stop early.
    Any key of the task file can be set on the command line: --training.seed 3, --search.space.r "[8, 16]".
    """
    run_directory = output if output is not None else Path("runs") / task.stem
    with exits(as_json=as_json, debug=debug, resume=run_directory), launched_ranks() as ranks:
        driver = begin_processes() if ranks is None else None
        with ending_imports(as_json=as_json, resume=run_directory), imports_uncollected("cohort.prepare.fitting_task"):
            # before what follows imports torch
            new_directory = run_directory if on_existing == "error" else None
            begin_task(task, context.obj or (), driver=driver, new_directory=new_directory)
            from cohort.core.errors import InputError
            from cohort.prepare.fitting_task import load_fitting_task
            from cohort.runs.directory import RunDirectory

        directory = RunDirectory(run_directory)
        if ranks is not None and ranks.place.num_restarts:
            # torchrun starts the same command again after a loss
            on_existing = "resume"
        holds_run = on_existing != "error" and directory.holds_run()
        # a directory that is taken is reported with the task's other problems, and before rows are read
        occupied = None if holds_run else RunDirectory.find_problem(run_directory)
        loaded = load_fitting_task(task, context.obj or (), also=() if occupied is None else (occupied,))
        if occupied is not None:
            raise InputError(occupied)
        refuse_other_number(loaded, ranks)
        refuse_own_recovery(ranks, on_lost_gpu)
        with ending_imports(as_json=as_json, resume=run_directory), imports_uncollected("cohort.engine.tune"):
            import cohort.engine.tune  # noqa: F401 - what follows imports it
        announce = announcement(directory, publish, name=publish_as, base_sha256=partial(_base_hash, loaded))
        from cohort.cli.tables.run_results import print_results

        existing = on_existing if holds_run else "error"
        _train(loaded, directory, existing=existing, ranks=ranks, most_losses=most_losses(on_lost_gpu))
        is_worse = print_results(run_directory, as_json=as_json)
        announce()
    # after the block, which dismisses the processes of other ranks: an exit within it would look like a failure to them
    if is_worse:
        end_as_worse(run_directory, as_json=as_json)


def _base_hash(task: TaskFile) -> str:
    from cohort.models.source import find_model
    from cohort.prepare.fingerprints import model_fingerprint

    # kept until a file changes, so that the run does not compute it again
    return model_fingerprint(find_model(task.model_name_or_path))


def _train(
    task: TaskFile, directory: RunDirectory, *, existing: OnExisting, ranks: LaunchedRanks | None, most_losses: int
) -> None:
    """Train ``task`` in ``directory``, which holds a run to continue or remove unless ``existing`` is ``error``."""
    from cohort.cli.terminal.progress import RUN_VIEW, watching
    from cohort.engine.recovery import train_despite_losses
    from cohort.engine.tune import tune as tune_task

    with watching(RUN_VIEW) as watcher:
        for note in task.notes():
            watcher.note(f"note: {note}")
        if existing == "overwrite":
            _remove(task, directory)
        act = partial(_continue, task, directory) if existing == "resume" else partial(tune_task, task, directory.root)
        begin = partial(act, watcher=watcher, options=options_with(ranks))
        train_despite_losses(begin, directory.root, watcher=watcher, most_losses=most_losses)


def _continue(task: TaskFile, directory: RunDirectory, *, watcher: ProgressWatcher, options: RunOptions | None) -> None:
    """Continue the run in ``directory`` if it is the task's."""
    from cohort.core.errors import InputError
    from cohort.engine.existing_run import places_of, same_run_problems
    from cohort.engine.tune import resume
    from cohort.prepare.inputs import read_inputs

    hint = "Choose another directory, or train again from the start with --on-existing overwrite."
    if problems := same_run_problems(directory, task, read_inputs(task), hint=hint):
        raise InputError(problems)
    resume(directory.root, watcher=watcher, options=options, places=places_of(task, directory))


def _remove(task: TaskFile, directory: RunDirectory) -> None:
    """Remove the run in ``directory`` once the task that follows it is known to be right."""
    from cohort.engine.existing_run import remove_run
    from cohort.prepare.inputs import read_inputs_and_machine

    read_inputs_and_machine(task)
    remove_run(directory)
