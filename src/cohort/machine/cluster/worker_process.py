"""The program of a worker process.

Its command is ``python -m cohort.machine.cluster.worker_process DESCRIPTOR PARENT MODULE:FUNCTION``.

It takes its end of the socket, ties its life to the dispatcher's, and calls the function with the channel. The
environment (visible devices, threads) was set before the interpreter began, so that every library finds it.
"""

from __future__ import annotations

import gc
import importlib
import socket
import sys

from cohort.core.process.parent_death import die_with_parent
from cohort.machine.cluster.line_channel import LineChannel

__all__ = ["main"]


def main() -> None:
    """Serve until the function returns or the dispatcher is gone."""
    descriptor, parent, target = sys.argv[1:]
    die_with_parent(int(parent))
    channel = LineChannel(socket.socket(fileno=int(descriptor)))
    module, _, name = target.partition(":")
    # nothing that an import makes is garbage: the collector would walk through all of torch many times
    gc.disable()
    serve = getattr(importlib.import_module(module), name)
    gc.freeze()
    gc.enable()
    serve(channel)


if __name__ == "__main__":
    main()
