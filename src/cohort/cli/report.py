"""``cohort report``: one HTML file with plots."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from cohort.cli.arguments.options import DebugOption, JsonOption, RunOrQueueArgument
from cohort.cli.exits import exits
from cohort.cli.hosted.submit import ServerOption, print_remote_report
from cohort.cli.terminal.repeating import WatchOption, repeat

__all__ = ["report"]

_WATCH_SECONDS = 10.0


def report(
    run_dir: RunOrQueueArgument,
    watch: WatchOption = False,
    server: ServerOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write report.html, which opens offline.

    It shows a run's loss curves, early exits, hyperparameters, slots and price, or a queue's plan and what happened.
    With --watch an open page follows the run: it loads itself again.
    """
    with exits(as_json=as_json, debug=debug):
        if server is not None:
            print_remote_report(run_dir, server, as_json=as_json)
            return
        write = partial(_write, run_dir, is_watched=watch)
        path, is_running = write()
        print(json.dumps({"path": str(path)}) if as_json else path, flush=True)
        if watch and is_running:
            repeat(lambda: write()[1], every_seconds=_WATCH_SECONDS)
            # a page that nothing renews any more must not load itself again
            _write(run_dir, is_watched=False)


def _write(run_dir: Path, *, is_watched: bool) -> tuple[Path, bool]:
    """Write the page; return its path, and whether a process is at work on what it shows."""
    from cohort.task_queue.store import find_queue, queue_holder

    if find_queue(run_dir):
        from cohort.task_queue.page import write_queue_page

        is_running = queue_holder(run_dir) is not None
        reload_seconds = _WATCH_SECONDS if is_watched and is_running else None
        return write_queue_page(run_dir, reload_seconds=reload_seconds), is_running
    from cohort.report.writing import write_report
    from cohort.runs.directory import RunDirectory
    from cohort.runs.reader import RunReader

    directory = RunDirectory.open(run_dir)
    is_running = directory.lock().holder() is not None
    with RunReader.open(directory.database) as reader:
        reload_seconds = _WATCH_SECONDS if is_watched and is_running else None
        write_report(directory.report, reader=reader, reload_seconds=reload_seconds)
    return directory.report, is_running
