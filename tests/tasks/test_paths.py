"""Local paths become absolute, hub ids stay, and a name that is neither is noted with the nearest file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.tasks.overrides import Override
from cohort.tasks.paths import from_working_directory, locate_data, locate_model
from cohort.tasks.yaml_lines import TaskOrigin

ORIGIN = TaskOrigin(name="t.yaml", lines={("model_name_or_path",): 1, ("dataset",): 2})


def test_a_local_model_is_made_absolute_and_a_hub_id_kept(folder: Path) -> None:
    for written, located in (("model", str(folder / "model")), ("org/name", "org/name"), ("gpt2", "gpt2")):
        data: dict[str, Any] = {"model_name_or_path": written}
        assert locate_model(data, folder, ORIGIN) == []
        assert data["model_name_or_path"] == located


@pytest.mark.parametrize(
    ("written", "found", "hint"),
    [
        ("./modle", "'./modle', which does not exist", "Did you mean 'model'?"),
        ("train.jsonl", "the file 'train.jsonl'", "Name the directory that holds config.json and the weights."),
        (
            "a/b/c",
            "'a/b/c', which does not exist",
            "Check the path; relative paths start at the task file, in Python at the working directory.",
        ),
    ],
)
def test_a_model_that_is_nowhere(folder: Path, written: str, found: str, hint: str) -> None:
    (problem,) = locate_model({"model_name_or_path": written}, folder, ORIGIN)
    assert (str(problem.where), problem.found, problem.hint) == ("t.yaml:1: model_name_or_path", found, hint)


def test_data_files_are_made_absolute_one_by_one(folder: Path) -> None:
    data: dict[str, Any] = {"dataset": {"train": ["train.jsonl", "org/rows"], "validation": 0.1}}
    assert locate_data(data, folder, ORIGIN) == []
    assert data["dataset"] == {"train": [str(folder / "train.jsonl"), "org/rows"], "validation": 0.1}
    (problem,) = locate_data({"dataset": {"train": "trian.jsonl"}}, folder, ORIGIN)
    assert str(problem.where) == "t.yaml:2: dataset.train"


def test_only_paths_that_exist_here_start_at_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for path, value, located in (
        (("dataset", "train"), "train.jsonl", str(folder / "train.jsonl")),
        (("dataset", "train"), ["train.jsonl", "x"], [str(folder / "train.jsonl"), "x"]),
        (("dataset", "validation"), 0.2, 0.2),
        (("objective",), "model", "model"),
    ):
        override = Override(path=path, value=value, option="--x")
        assert from_working_directory(override).value == located
