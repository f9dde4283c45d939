"""A task in Python takes the keys of the task file as arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.tasks.task import Task
from cohort.tuning.early_exit.settings import EarlyExitSettings


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_paths_start_at_the_working_directory(folder: Path) -> None:
    task = Task(model=Path("model"), dataset=Path("train.jsonl"), search_space={"r": [4, 8]})
    assert task.file.model_name_or_path == str(folder / "model")
    assert task.file.dataset.train == (str(folder / "train.jsonl"),)
    assert (task.name, list(task.file.search.space)) == ("train", ["r"])


def test_problems_name_the_task() -> None:
    with pytest.raises(InputError, match=r"^Task 'mine': lora\.r: found 0"):
        Task(model="model", dataset="train.jsonl", name="mine", lora={"r": 0})
    with pytest.raises(InputError, match=r"^Task: search_space: found search_space and search\['space'\]"):
        Task(model="model", dataset="train.jsonl", search={"space": {}}, search_space={})


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_a_name_that_is_no_folder_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="Task: name: found"):
        Task(model="model", dataset="train.jsonl", name=name)


def test_early_exit_of_the_engine_is_a_default() -> None:
    settings = EarlyExitSettings(rule="patience", patience=7)
    plain = Task(model="model", dataset="train.jsonl")
    assert plain.with_early_exit(settings).early_exit_settings() == settings
    own = Task(model="model", dataset="train.jsonl", early_exit="none")
    assert own.with_early_exit(settings).early_exit.rule == "none"
    given = Task(model="model", dataset="train.jsonl", early_exit=settings)
    assert given.file.early_exit_settings() == settings
