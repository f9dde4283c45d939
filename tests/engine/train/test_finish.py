"""What the end of a run records beside the adapters."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from cohort.core import durable_files
from cohort.engine.train.finish import has_importances
from cohort.engine.tune import RunOptions, resume, tune
from cohort.runs.reader import RunReader
from cohort.runs.results.results import read_results
from tests.end_to_end.tiny_tasks import outcome_of, tiny_task, write_inputs


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
    assert (facts.default_metrics is None) == is_stopped
    assert (results.default_trial is not None) == is_stopped
    assert results.default_value is not None


def test_importances_are_of_a_dozen_trials() -> None:
    fewer: Any = SimpleNamespace(trial_ids=range(11))
    enough: Any = SimpleNamespace(trial_ids=range(12))
    assert (has_importances(fewer), has_importances(enough)) == (False, True)


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".safetensors")}


def test_a_kept_trial_is_as_complete_as_the_best(folder: Path, tmp_path: Path) -> None:
    tune(tiny_task(folder), tmp_path / "run")
    kept = [path.parent for path in (tmp_path / "run" / "trials").glob("*/adapter_config.json")]
    assert len(kept) > 1
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        task_hash = reader.facts().task.task_hash
    for trial in kept:
        assert _names(trial) == _names(tmp_path / "run" / "best") >= {"tokenizer.json", "README.md"}
        assert f"| task hash | {task_hash} |" in (trial / "README.md").read_text()
        assert AutoTokenizer.from_pretrained(trial).encode("1+1") == [18, 12, 18]


def _relative(run: Path, pattern: str) -> list[str]:
    return sorted(path.relative_to(run).as_posix() for path in run.glob(pattern))


def test_a_finished_run_keeps_only_what_can_still_be_of_use(folder: Path, tmp_path: Path) -> None:
    run, every_tick = tmp_path / "run", RunOptions(checkpoint_seconds=0.0, checkpoint_share=math.inf)
    tune(tiny_task(folder), run, options=every_tick)
    with RunReader.open(run / "run.db") as reader:
        (checkpoint,) = reader.checkpoints()
        bests = {trial.trial_id: trial.best_step for trial in reader.trials()}
        assert reader.facts().are_results_written is True
    assert _relative(run, "trials/*/state-*") == []
    assert _relative(run, "trials/*/best-*") == [
        f"trials/{n:04d}/best-{step:06d}.safetensors" for n, step in bests.items()
    ]
    assert _relative(run, "checkpoints/*") == [checkpoint.file_name.replace(".json", ".db"), checkpoint.file_name]


def test_a_finished_run_is_whole_again_from_what_it_keeps(folder: Path, tmp_path: Path) -> None:
    tune(tiny_task(folder), tmp_path / "run")
    before = outcome_of(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "best")
    (tmp_path / "run" / "run.db").write_bytes(b"")
    resume(tmp_path / "run")
    assert outcome_of(tmp_path / "run") == before


def test_a_run_waits_for_the_disk_with_its_best_adapter_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(durable_files, "flush_to_disk", flushed.append)
    tune(tiny_task(folder, early_exit="none"), tmp_path / "run")
    names = {path.name for path in flushed if any(part.startswith(".best.") for part in path.parts)}
    assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json"} <= names
    # no adapter of a trial: its folder and its checkpoints' manifest are others
    assert not [path for path in flushed if "trials" in path.parts]
    # tables can be made again
    assert not [path for path in flushed if path.name.startswith((".report.html", ".metrics.jsonl"))]
    # each file of the best one once
    assert len([path for path in flushed if path.name == "adapter_config.json"]) == 1
