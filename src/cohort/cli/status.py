"""``cohort status``: the state of a run or a queue, as a table."""

from __future__ import annotations

from cohort.cli.exits import exits
from cohort.cli.options import DebugOption, JsonOption, RunOrQueueArgument

__all__ = ["status"]


def status(run_dir: RunOrQueueArgument, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show the state of a run or a queue."""
    with exits(as_json=as_json, debug=debug):
        from cohort.task_queue.store import find_queue

        if find_queue(run_dir):
            from cohort.cli.tables.queue_table import print_queue
            from cohort.task_queue.status import read_queue_status

            print_queue(read_queue_status(run_dir), as_json=as_json)
            return
        from cohort.task_queue.status import read_unstarted_task

        if (unstarted := read_unstarted_task(run_dir)) is not None:
            from cohort.cli.tables.queue_table import print_unstarted

            print_unstarted(unstarted, as_json=as_json)
            return
        from cohort.cli.tables.run_results import print_status
        from cohort.runs.directory import RunDirectory
        from cohort.runs.status import read_status

        print_status(read_status(RunDirectory.open(run_dir)), run_directory=run_dir, as_json=as_json)
