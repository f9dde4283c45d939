"""A queue's worker that sends itself a signal once: ``TEST_SIGNAL`` holds ``at``, ``call``, ``number`` and ``once``.

``once`` is a path that exists from then on; the worker that follows is undisturbed. Without ``at`` it is sent before
the worker begins.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from cohort.machine.cluster.worker_pool import WorkerChannel
from cohort.task_queue.workers import worker
from tests.end_to_end.stopped.sent_signals import call_before, send_signal

__all__ = ["VARIABLE", "serve"]

VARIABLE = "TEST_SIGNAL"


def serve(channel: WorkerChannel) -> None:
    """Serve as any worker does."""
    sent = json.loads(os.environ[VARIABLE])
    once = Path(sent["once"])
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def disturb() -> None:
        once.touch()
        send_signal(sent["number"])

    if not once.exists():
        if sent["at"]:
            call_before(sent["at"], disturb, call=sent["call"])
        else:
            disturb()
    worker.serve(channel)
