"""``cohort status``: where a run stands, as a table."""

from __future__ import annotations

from cohort.cli.exits import exits
from cohort.cli.options import DebugOption, JsonOption, RunDirArgument

__all__ = ["status"]


def status(run_dir: RunDirArgument, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show where a run stands: its trials, best first, and what is left to do."""
    with exits(as_json=as_json, debug=debug):
        from cohort.cli.run_results import print_status
        from cohort.engine.run_directory import RunDirectory
        from cohort.engine.status import read_status

        print_status(read_status(RunDirectory.open(run_dir)), as_json=as_json)
