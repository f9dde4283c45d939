"""Ports for processes that must be told theirs before they listen.

A port of 0 would have the kernel choose one, but only the process that listens learns which. One that the kernel chose
for a socket of the test is free again once that is closed, and the next connection of any process may take it.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import socket
from collections.abc import Iterator

__all__ = ["free_port"]

# below those that Linux gives to connections, 32,768 and more
_FIRST = 20_000
_PORTS_OF_A_WORKER, _MOST_WORKERS = 500, 24


@functools.cache
def _ports_of_this_worker() -> Iterator[int]:
    """Return the ports of this process of xdist, again and again, so that one comes back as late as it can."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST + worker % _MOST_WORKERS * _PORTS_OF_A_WORKER
    # another session of tests has the same ports: it begins elsewhere, whatever a test has seeded
    start = random.SystemRandom().randrange(_PORTS_OF_A_WORKER)
    return itertools.cycle(first + (start + place) % _PORTS_OF_A_WORKER for place in range(_PORTS_OF_A_WORKER))


def free_port() -> int:
    """Return a port that no process listens at, and that none but the caller's is to be given."""
    for port in itertools.islice(_ports_of_this_worker(), _PORTS_OF_A_WORKER):
        with socket.socket() as probe:
            try:
                # of all addresses: a process may listen at any
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"all {_PORTS_OF_A_WORKER} ports of this worker are taken")
