"""A run that has begun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.engine.run_start import begun_run, new_directory
from cohort.engine.train.open_run import RunConditions
from tests.end_to_end.tiny_tasks import write_inputs
from tests.engine.train.begun_task import Begun, prepared
from tests.engine.train.fakes import Notes


@pytest.fixture(scope="module")
def begun_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("task_run"))


@pytest.fixture
def begun(begun_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begun]:
    # sizes are chosen by the memory that is free then; over all that other tests left it would take a second
    monkeypatch.setattr("gc.collect", lambda: 0)
    preparation = prepared(begun_folder)
    with (
        new_directory(tmp_path / "run", preparation.task) as directory,
        begun_run(preparation, directory, RunConditions(watcher=Notes(), clock=ManualClock())) as run,
    ):
        yield Begun(begun_folder, run, preparation)
