"""The program that works a service's queue off: ``python -m cohort.service.jobs.dispatcher_program``.

Reads its order as JSON from standard input. It dies with the server, and its workers die with it: the next one
continues from the queue's database and the run directories. SIGTERM lets every task save its state first.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from cohort.core.errors import CohortError, InUseError
from cohort.core.process.parent_death import die_with_parent
from cohort.runs.directory import QUEUE_DATABASE
from cohort.task_queue.expected_time import ExpectedTime
from cohort.task_queue.operations import work_off
from cohort.task_queue.settings import DispatcherSettings
from cohort.task_queue.store import QueueStore
from cohort.task_queue.workers.pool import PoolRequest, most_slots_of_node, open_pool

__all__ = ["main"]

# a killed dispatcher's workers are gone within moments; its lock goes with it
_LOCK_SECONDS = 30.0
_PAUSE_SECONDS = 0.1


def main() -> None:
    """Work the queue off until a signal comes."""
    order = json.loads(sys.stdin.readline())
    die_with_parent(int(order["parent"]))
    directory = Path(order["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    QueueStore.open(directory / QUEUE_DATABASE, create=True).close()
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            _work(directory, order)
        except KeyboardInterrupt:
            return
        except InUseError as error:
            if time.monotonic() > until:
                sys.exit(f"error: {error}")
            time.sleep(_PAUSE_SECONDS)
        except CohortError as error:
            sys.exit(f"error: {error}")


def _work(directory: Path, order: dict[str, object]) -> None:
    pool, hardware = open_pool(PoolRequest(**order["places"]), directory)  # type: ignore[arg-type]
    expect = ExpectedTime(directory, hardware, slots_of_node=most_slots_of_node(pool))
    work_off(directory, pool, expect=expect, work=expect.work, settings=DispatcherSettings(keeps_open=True))


if __name__ == "__main__":
    main()
