"""``cohort resume``: goes on after any kind of stop."""

from __future__ import annotations

from cohort.cli.exits import exits
from cohort.cli.options import DebugOption, JsonOption, RunDirArgument

__all__ = ["resume"]


def resume(run_dir: RunDirArgument, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Go on with a run after Ctrl-C, a kill or a reboot; a finished run shows its result."""
    with exits(as_json=as_json, debug=debug, resume=run_dir):
        from cohort.engine.run_directory import RunDirectory

        RunDirectory.open(run_dir)
        from cohort.cli.progress import watching
        from cohort.cli.run_results import print_results
        from cohort.engine.tune import resume as resume_run

        with watching() as watcher:
            resume_run(run_dir, watcher=watcher)
        print_results(run_dir, as_json=as_json)
