"""A queue as its page shows it: its tasks, and when each runs where, as planned and as it went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cohort.service.dashboard.plain_json import plain
from cohort.task_queue.status import queue_status_json, read_queue_status

__all__ = ["queue_page"]


def queue_page(directory: Path) -> dict[str, Any]:
    """Return the queue in ``directory``; times are seconds since it began.

    Raises:
        InputError: there is no queue.
    """
    return dict(plain(queue_status_json(read_queue_status(directory))))
