"""Data sets with weights in task files, on the command line and from Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.tasks.loading import load_task, task_from_mapping
from cohort.tasks.task import Task

ENTRIES = [{"path": "a.jsonl", "weight": 0.7}, {"path": "b.jsonl", "weight": 0.3}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of rows."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "row"}\n')
    return tmp_path


def task_with(folder: Path, train: Any, **dataset: Any) -> Any:
    data = {"model_name_or_path": "org/model", "dataset": {"train": train, **dataset}}
    return task_from_mapping(data, base_directory=folder, name="t")


def test_entries_become_paths_and_weights(folder: Path) -> None:
    settings = task_with(folder, ENTRIES).dataset_settings()
    assert settings.train == (str(folder / "a.jsonl"), str(folder / "b.jsonl"))
    assert settings.weights == [0.7, 0.3]


def test_the_resolved_task_is_the_same_task(folder: Path) -> None:
    task = task_with(folder, ENTRIES)
    (folder / "resolved.yaml").write_text(task.resolved_yaml())
    assert load_task(folder / "resolved.yaml").model_dump() == task.model_dump()


@pytest.mark.parametrize("train", ["a.jsonl", ["a.jsonl", "b.jsonl"], [{"path": "a.jsonl"}], {"path": "a.jsonl"}])
def test_without_weights_nothing_is_resampled(folder: Path, train: Any) -> None:
    assert task_with(folder, train).dataset_settings().weights is None


def test_weights_on_the_command_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "task.yaml"
    file.write_text("model_name_or_path: org/model\ndataset:\n  train: a.jsonl\n")
    monkeypatch.chdir(folder)
    task = load_task(file, ["--dataset.train", json.dumps(ENTRIES)])
    assert task.dataset.weights == [0.7, 0.3]
    # the place of a recorded run's rows may change alone
    task = load_task(file, ["--dataset.train", '["a.jsonl", "b.jsonl"]', "--dataset.weights", "[1, 2]"])
    assert task.dataset.weights == [1, 2]


@pytest.mark.parametrize(
    ("train", "problem"),
    [
        ([ENTRIES[0], {"path": "b.jsonl", "weight": -0.3}], r"dataset\.train\[1\]\.weight: found -0\.3.*above 0"),
        ([ENTRIES[0], {"path": "b.jsonl", "weight": 0}], r"train\[1\]\.weight: found 0"),
        ([ENTRIES[0], {"path": "b.jsonl", "weight": float("nan")}], r"train\[1\]\.weight: found nan"),
        ([ENTRIES[0], {"path": "b.jsonl", "weight": True}], r"train\[1\]\.weight: found True"),
        ([ENTRIES[0], {"path": "b.jsonl", "weight": None}], r"train\[1\]\.weight: found nothing"),
        ([ENTRIES[0], {"path": "b.jsonl", "weight": "30%"}], r"0\.3, without quotes"),
        ([ENTRIES[0], "b.jsonl"], r"train\[1\]: found 'b\.jsonl' without a weight"),
        ([ENTRIES[0], {"path": "b.jsonl"}], r"train\[1\]: found 'b\.jsonl' without a weight"),
        ([ENTRIES[0], {"path": "b.jsonl", "wieght": 1}], r"train\[1\]\.wieght.*Did you mean weight"),
        ([ENTRIES[0], {"path": "b.jsonl", "type": "alpaca"}], r"train\[1\]\.type.*dataset\.format"),
        ([ENTRIES[0], {"weight": 1}], r"train\[1\]: found no path"),
        ([ENTRIES[0], {"path": "c.jsonl", "weight": 1}], r"c\.jsonl', which does not exist"),
        ({"path": "a.jsonl", "weight": 0}, r"dataset\.train\.weight: found 0"),
    ],
)
def test_wrong_entries(folder: Path, train: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        task_with(folder, train)


def test_weights_written_twice_or_for_validation(folder: Path) -> None:
    with pytest.raises(InputError, match=r"the weights \[0\.7, 0\.3\], but dataset\.weights \[1, 2\]"):
        task_with(folder, ENTRIES, weights=[1, 2])
    assert task_with(folder, ENTRIES, weights=[0.7, 0.3]).dataset.weights == [0.7, 0.3]
    with pytest.raises(InputError, match="only training rows have weights"):
        task_with(folder, "a.jsonl", validation=[{"path": "b.jsonl", "weight": 1}])


def test_from_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    entries = [{**entry, "path": folder / str(entry["path"])} for entry in ENTRIES]
    for dataset in (entries, {"train": entries, "validation": 0.5}):
        task = Task(model="org/model", dataset=dataset)
        assert task.file.dataset.weights == [0.7, 0.3]
        assert task.name == "a"
        assert not task.file.given
    rows = [{"path": "x", "weight": 2, "prompt": "P", "completion": "C"}]
    assert "train" in Task(model="org/model", dataset=rows).file.given, "rows may have such columns"
    with pytest.raises(InputError, match=r"train\[0\]\.weigth.*Did you mean weight"):
        Task(model="org/model", dataset=[{"path": "a.jsonl", "weigth": 1}])
