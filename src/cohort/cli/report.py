"""``cohort report``: one HTML file with plots."""

from __future__ import annotations

import json

from cohort.cli.exits import exits
from cohort.cli.options import DebugOption, JsonOption, RunDirArgument

__all__ = ["report"]


def report(run_dir: RunDirArgument, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Write report.html (loss curves, exits, hyperparameters, slots, compute saved); it opens offline."""
    with exits(as_json=as_json, debug=debug):
        from cohort.engine.report import write_report
        from cohort.engine.run_directory import RunDirectory
        from cohort.engine.run_store_reading import RunReader

        directory = RunDirectory.open(run_dir)
        with RunReader.open(directory.database) as reader:
            write_report(directory.report, reader=reader)
        print(json.dumps({"path": str(directory.report)}) if as_json else directory.report)
