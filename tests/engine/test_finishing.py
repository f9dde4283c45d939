"""What the end of a run records beside the adapters."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from cohort.engine.results import read_results
from cohort.engine.run_store_reading import RunReader
from cohort.engine.tune import tune
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("finishing"))


# within so short a warm-up a random model only gets worse: a rate that moves it is sorted out
@pytest.mark.parametrize(("rate", "others", "is_stopped"), [(3.0, [1e-6, 1e-7], True), (1e-6, [2.0, 3.0], False)])
def test_the_default_is_recorded_when_its_trial_went_through(
    folder: Path, tmp_path: Path, *, rate: float, others: list[float], is_stopped: bool
) -> None:
    sections = {
        "training": {"max_steps": 8, "learning_rate": rate},
        "lora": {"r": 2},
        "search": {"space": {"learning_rate": [rate, *others]}},
    }
    tune(tiny_task(folder, **sections), tmp_path / "run")
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        facts, results = reader.facts(), read_results(reader)
    assert ("default_metrics" not in facts) == is_stopped
    assert (results.default_trial is not None) == is_stopped
    assert results.default_value is not None


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".safetensors")}


def test_a_kept_trial_is_as_complete_as_the_best(folder: Path, tmp_path: Path) -> None:
    tune(tiny_task(folder), tmp_path / "run")
    kept = [path.parent for path in (tmp_path / "run" / "trials").glob("*/adapter_config.json")]
    assert len(kept) > 1
    for trial in kept:
        assert _names(trial) == _names(tmp_path / "run" / "best") >= {"tokenizer.json", "README.md"}
        assert AutoTokenizer.from_pretrained(trial).encode("1+1") == [18, 12, 18]
