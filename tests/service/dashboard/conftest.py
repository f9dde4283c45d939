"""A folder of two runs, and a client of the pages over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from cohort.runs.directory import RunDirectory
from cohort.service.dashboard.app import build_dashboard
from cohort.service.dashboard.settings import DashboardSettings
from tests.runs.small_run import write_small_run
from tests.runs.synthetic_run import SyntheticRun, write_synthetic_run
from tests.service.dashboard.chromium import browser_here


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """``small`` has four trials and goes on; ``night/sweep`` has eight and is done."""
    write_small_run(tmp_path / "small")[1].close()
    done = RunDirectory.create(tmp_path / "night" / "sweep")
    write_synthetic_run(done.database, SyntheticRun(trials=8, steps=20, slots=4))
    (tmp_path / "night" / "no-run").mkdir()
    return tmp_path


@pytest.fixture
def client(folder: Path) -> TestClient:
    """A browser on this machine, without a session."""
    return client_of(DashboardSettings(root=folder))


def client_of(settings: DashboardSettings) -> TestClient:
    return TestClient(build_dashboard(settings), base_url="http://127.0.0.1:8090")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser_here() as browser:
        yield browser
