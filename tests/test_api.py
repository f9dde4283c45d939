"""What an engine gives its tasks; whole runs from Python are tested end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.api import Engine
from cohort.core.errors import InputError
from cohort.tasks.task import Task


def _task(tmp_path: Path, num_gpus: int) -> Task:
    (tmp_path / "train.jsonl").touch()
    return Task(name="mine", model="owner/model", dataset=tmp_path / "train.jsonl", num_gpus=num_gpus)


def test_a_task_gets_no_gpu_that_the_engine_has_not(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"num_gpus: found 1; allowed: at most 0"):
        Engine(total_gpus=0).schedule([_task(tmp_path, 1)])
    assert Engine(total_gpus=1).schedule([_task(tmp_path, 0)]).placements[0].num_gpus == 0
    assert Engine().schedule([_task(tmp_path, 1)]).placements[0].num_gpus == 1


@pytest.mark.parametrize("name", ["../x", "..", ".", "", "a/b", "/etc", "a\\b", "a\0b"])
def test_a_name_stays_in_the_parent_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="Task: name: found"):
        Task(name=name, model="owner/model", dataset=tmp_path / "train.jsonl")


def test_a_directory_given_by_its_way_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows" / "inner").mkdir(parents=True)
    (tmp_path / "rows" / "train.jsonl").touch()
    monkeypatch.chdir(tmp_path / "rows" / "inner")
    assert Task(model="owner/model", dataset="..").name == "rows"
