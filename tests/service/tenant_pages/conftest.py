"""A browser for the pages of tenants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.dashboard.chromium import browser_here


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser_here() as browser:
        yield browser
