"""A service's store whose time the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.store.store import Store, open_store


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    opened = open_store(tmp_path / "service", clock=clock)
    yield opened
    opened.close()
