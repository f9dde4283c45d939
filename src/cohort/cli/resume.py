"""``cohort resume``: continues after any kind of stop."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from cohort.cli.adapters.publishing import PublishAsOption, PublishOption, announcement
from cohort.cli.arguments.options import DebugOption, JsonOption, LostGpuOption, RunOrQueueArgument
from cohort.cli.exits import end_as_worse, exits
from cohort.cli.launched_ranks import launched_ranks, most_losses, options_with, refuse_own_recovery, refuse_queue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cohort.ranks.launch.launched import LaunchedRanks
    from cohort.runs.directory import RunDirectory

__all__ = ["resume"]


def resume(
    context: typer.Context,
    run_dir: RunOrQueueArgument,
    publish: PublishOption = None,
    publish_as: PublishAsOption = None,
    trial: Annotated[
        list[int] | None,
        typer.Option(
            "--trial",
            metavar="N",
            help="Of a finished run: train this trial again, up to its best checkpoint, which is not on disk; can be "
            "repeated.",
        ),
    ] = None,
    on_lost_gpu: LostGpuOption = "stop",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Continue a run or a queue after any stop.

    This works after Ctrl-C, a kill or a reboot, also on another machine. A finished run shows its result. If inputs
    have moved, name them: --model_name_or_path PATH, --dataset.train PATH, --dataset.validation PATH,
    --dataset.test PATH.
    """
    with exits(as_json=as_json, debug=debug, resume=run_dir), launched_ranks() as ranks:
        from cohort.task_queue.store import find_queue

        refuse_own_recovery(ranks, on_lost_gpu)
        if find_queue(run_dir):
            refuse_queue(ranks, run_dir)
            if context.obj:
                _refuse_inputs(run_dir, context.obj[0])
            if publish is not None or publish_as is not None:
                _refuse_inputs(run_dir, "--publish")
            if trial:
                _refuse_inputs(run_dir, "--trial")
            from cohort.cli.run import continue_queue

            continue_queue(run_dir, as_json=as_json)
            return
        from cohort.runs.directory import RunDirectory

        if trial:
            _train_again(run_dir, trial, places=context.obj or (), ranks=ranks)
            return
        directory = RunDirectory.open(run_dir)
        announce = announcement(directory, publish, name=publish_as, base_sha256=partial(_base_hash, directory))
        from cohort.cli.tables.run_results import print_results
        from cohort.cli.terminal.progress import RUN_VIEW, watching
        from cohort.engine.recovery import train_despite_losses
        from cohort.engine.tune import resume as resume_run

        with watching(RUN_VIEW) as watcher:
            options = options_with(ranks)
            begin = partial(resume_run, run_dir, watcher=watcher, options=options, places=context.obj or ())
            train_despite_losses(begin, run_dir, watcher=watcher, most_losses=most_losses(on_lost_gpu))
        is_worse = print_results(run_dir, as_json=as_json)
        announce()
    # after the block, which dismisses the processes of other ranks: an exit within it would look like a failure to them
    if is_worse:
        end_as_worse(run_dir, as_json=as_json)


def _train_again(run_dir: Path, trials: list[int], *, places: Sequence[str], ranks: LaunchedRanks | None) -> None:
    """Train trials of a finished run up to best checkpoints that are not on disk."""
    from cohort.cli.terminal.progress import RUN_VIEW, watching
    from cohort.engine.lost_checkpoints import train_again

    with watching(RUN_VIEW) as watcher:
        train_again(run_dir, trials, watcher=watcher, options=options_with(ranks), places=places)


def _base_hash(directory: RunDirectory) -> str | None:
    from cohort.runs.reader import RunReader

    with RunReader.open(directory.database) as reader:
        return reader.facts().inputs.model_hash


def _refuse_inputs(queue: Path, option: str) -> NoReturn:
    from cohort.core.errors import InputError, Problem

    raise InputError(
        Problem(
            where=f"command line {option}",
            found=f"an option of one run, but {queue} is a queue",
            allowed=f"cohort resume {queue}/TASK, for one task's run",
            hint="Leave the option out, or resume that run first.",
        )
    )
