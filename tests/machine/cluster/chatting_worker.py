"""A worker for tests of pools: answers, hangs, dies, or starts a child, as it is told."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from cohort.machine.cluster.worker_pool import WorkerChannel

# whoever sleeps outlasts every test's patience: what ends before was ended
LONG_SECONDS = 3600


def serve(channel: WorkerChannel) -> None:
    """Work until the pool is gone."""
    channel.send({"ready": os.getpid(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")})
    while (message := channel.receive()) is not None:
        match message["do"]:
            case "echo":
                channel.send({"echo": message["text"]})
            case "fail":
                raise ValueError("it was told to")
            case "start a child":
                child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LONG_SECONDS})"])
                channel.send({"child": child.pid})
            case "sleep":
                time.sleep(LONG_SECONDS)


def refuse(channel: WorkerChannel) -> None:
    """End before a word was said."""
    sys.exit("no such device")
