"""``cohort status``: the state of a run or a queue, as a table."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cohort.cli.arguments.options import DebugOption, JsonOption, RunOrQueueArgument
from cohort.cli.exits import exits
from cohort.cli.hosted.submit import ServerOption, print_remote_status
from cohort.cli.terminal.repeating import WatchOption, clear_terminal, repeat

__all__ = ["status"]

_WATCH_SECONDS = 3.0


def status(
    run_dir: RunOrQueueArgument,
    watch: WatchOption = False,
    server: ServerOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show the state of a run or a queue, or of a task of a service."""
    with exits(as_json=as_json, debug=debug):
        show = partial(_show, run_dir, is_watched=watch, as_json=as_json)
        if server is not None:
            show = partial(print_remote_status, run_dir, server, as_json=as_json)
        if watch:
            repeat(show, every_seconds=_WATCH_SECONDS)
        else:
            show()


def _show(run_dir: Path, *, is_watched: bool, as_json: bool) -> bool:
    """Print the state; return whether a process is at work on it."""
    from cohort.task_queue.store import find_queue

    clear = clear_terminal if is_watched else lambda: None
    if find_queue(run_dir):
        from cohort.cli.tables.queue_table import print_queue
        from cohort.task_queue.status import read_queue_status

        queue = read_queue_status(run_dir)
        clear()
        print_queue(queue, as_json=as_json)
        return bool(queue.holder)
    from cohort.task_queue.status import read_unstarted_task

    if (unstarted := read_unstarted_task(run_dir)) is not None:
        from cohort.cli.tables.queue_table import print_unstarted
        from cohort.task_queue.store import queue_holder

        clear()
        print_unstarted(unstarted, as_json=as_json)
        return queue_holder(run_dir.absolute().parent) is not None
    from cohort.cli.tables.run_results import print_status
    from cohort.runs.directory import RunDirectory
    from cohort.runs.status import read_status

    run = read_status(RunDirectory.open(run_dir))
    clear()
    print_status(run, run_directory=run_dir, as_json=as_json)
    return run.state == "running"
