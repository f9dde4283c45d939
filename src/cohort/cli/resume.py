"""``cohort resume``: goes on after any kind of stop."""

from __future__ import annotations

import typer

from cohort.cli.exits import exits
from cohort.cli.options import DebugOption, JsonOption, RunDirArgument

__all__ = ["resume"]


def resume(
    context: typer.Context, run_dir: RunDirArgument, as_json: JsonOption = False, debug: DebugOption = False
) -> None:
    """Go on with a run or a queue after Ctrl-C, a kill or a reboot, also on another machine; a finished one shows its
    result.

    Inputs that are elsewhere now: --model_name_or_path PATH, --dataset.train PATH, --dataset.validation PATH.
    """
    with exits(as_json=as_json, debug=debug, resume=run_dir):
        from cohort.task_queue.operations import find_queue

        if find_queue(run_dir):
            from cohort.cli.run import go_on_as_before
            from cohort.core.errors import InputError, Problem

            if context.obj:
                raise InputError(
                    Problem(
                        where=f"command line {context.obj[0]}",
                        found=f"an input of one run, but {run_dir} is a queue",
                        allowed=f"cohort resume {run_dir}/TASK, for one task's run",
                        hint="Leave it out, or resume the one run first.",
                    )
                )
            go_on_as_before(run_dir, as_json=as_json)
            return
        from cohort.runs.directory import RunDirectory

        RunDirectory.open(run_dir)
        from cohort.cli.progress import watching
        from cohort.cli.run_results import print_results
        from cohort.engine.tune import resume as resume_run

        with watching() as watcher:
            resume_run(run_dir, watcher=watcher, places=context.obj or ())
        print_results(run_dir, as_json=as_json)
