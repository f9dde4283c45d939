"""A task whose base model is streamed through host memory: the same run, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.engine.tune import RunOptions, resume, tune
from cohort.planning.check import check_task
from cohort.runs.reader import RunReader
from tests.cli.tiny_task import write_tiny_model
from tests.end_to_end.tiny_tasks import Interrupting, TickingClock, outcome_of, tiny_task, write_inputs

OPTIONS = RunOptions(checkpoint_seconds=0.0, token_budget=40)
STREAMED: dict[str, Any] = {"memory": {"host_streamed_layers": 3}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("tiny"))
    write_tiny_model(folder / "model", num_layers=4)
    return folder


def test_a_streamed_run_has_the_bits_of_a_resident_one_also_when_it_goes_on(folder: Path, tmp_path: Path) -> None:
    tune(tiny_task(folder), tmp_path / "resident", options=OPTIONS)
    watcher = Interrupting(12)
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_task(folder, **STREAMED), tmp_path / "run", options=OPTIONS, watcher=watcher, clock=TickingClock())
    assert any("3 of 4 layers" in note for note in watcher.notes)
    resume(tmp_path / "run", options=OPTIONS)
    assert outcome_of(tmp_path / "run") == outcome_of(tmp_path / "resident")
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        assert reader.facts().memory.host_streamed_layers == 3


@pytest.mark.slow
def test_several_ranks_stream_too(folder: Path, tmp_path: Path) -> None:
    tune(tiny_task(folder, **STREAMED), tmp_path / "one", options=OPTIONS)
    tune(tiny_task(folder, **STREAMED), tmp_path / "two", options=RunOptions(token_budget=40, num_ranks=2))
    one, two = (outcome_of(tmp_path / name) for name in ("one", "two"))
    assert (one["steps"], one["adapters"]) == (two["steps"], two["adapters"])


def test_a_check_says_it(folder: Path) -> None:
    notes = check_task(tiny_task(folder, **STREAMED)).notes
    assert any("3 of 4 layers" in note and "host_streamed_layers" in note for note in notes)
    with pytest.raises(InputError, match="auto, 0, or 3 to 4"):
        check_task(tiny_task(folder, memory={"host_streamed_layers": 5}))
