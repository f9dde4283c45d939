"""``cohort report``: one HTML file with plots."""

from __future__ import annotations

import json

from cohort.cli.exits import exits
from cohort.cli.options import DebugOption, JsonOption, RunOrQueueArgument

__all__ = ["report"]


def report(run_dir: RunOrQueueArgument, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Write report.html, which opens offline.

    It shows a run's loss curves, early exits, hyperparameters, slots and price, or a queue's plan and what happened.
    """
    with exits(as_json=as_json, debug=debug):
        from cohort.task_queue.store import find_queue

        if find_queue(run_dir):
            from cohort.task_queue.page import write_queue_page

            path = write_queue_page(run_dir)
        else:
            from cohort.report import write_report
            from cohort.runs.directory import RunDirectory
            from cohort.runs.reader import RunReader

            directory = RunDirectory.open(run_dir)
            path = directory.report
            with RunReader.open(directory.database) as reader:
                write_report(path, reader=reader)
        print(json.dumps({"path": str(path)}) if as_json else path)
