"""What several files of end-to-end tests share: one process whose forks are killed and stopped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.end_to_end.stopped.forked_runs import ForkServer


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """It imports everything once, which takes longer than ten runs of a tiny task."""
    server = ForkServer()
    yield server
    server.close()
