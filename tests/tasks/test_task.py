"""A task in Python takes the keys of the task file as arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peft import LoraConfig

from cohort.core.errors import InputError
from cohort.tasks.task import Task
from cohort.tuning.early_exit.settings import EarlyExitSettings
from tests.integrations.test_trl import SFTConfig

_NESTED: dict[str, Any] = {}
_NESTED["seed"] = _NESTED


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


def test_numbers_of_numpy_are_numbers() -> None:
    space = {"learning_rate": np.logspace(-4, -3, 2), "r": range(4, 6), "batch_size": [np.int64(2)]}
    task = Task(
        model="model",
        dataset="train.jsonl",
        search_space=space,
        training={"seed": np.int64(3)},
        num_gpus=np.int64(0),  # type: ignore[arg-type]
    )
    plain = Task(
        model="model",
        dataset="train.jsonl",
        search_space={"learning_rate": [1e-4, 1e-3], "r": [4, 5], "batch_size": [2]},
        training={"seed": 3},
        num_gpus=0,
    )
    assert task.file == plain.file


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"modle": "x"}, r"Task: modle: found 'x', an unknown argument; .*Did you mean model\?"),
        ({"lr": 1e-4}, r"Write training=\{'learning_rate': \.\.\.\}; to search over it, search_space="),
        ({"gradient_accumulation_steps": 4}, "Remove it: batch_size is the whole optimizer step"),
        ({"lora": 5, "training": "x"}, r"Task: lora: found 5; (.|\n)*Task: training: found 'x'"),
        ({"search": 4, "search_space": 5}, "Task: search: found 4"),
        ({"report_to": 5}, "Task: report_to: found 5"),
        ({"name": 5}, "Task: name: found 5"),
        ({"training": {"learning_rate": 10**400}}, r"training\.learning_rate: found 1000"),
        ({"memory": {"limit": 10**400}}, r"memory\.limit: found 1000"),
        ({"dataset": "a\0b"}, r"dataset\.train: found 'a\\x00b'"),
        ({"search_space": {"learning_rate": (rate for rate in [1e-3])}}, "learning_rate: found <generator"),
        ({"training": _NESTED}, "found a list or dict that contains itself"),
        ({"name": "a\nb"}, r"name: found 'a\\nb'; allowed: the name of a folder, in one line"),
        ({"name": "a" * 300}, "name: found 'aaa"),
        ({"dataset": {"prompt": ["a"], "completion": ["b"]}}, r"found a dict of columns: .*pandas\.DataFrame"),
        ({"dataset": {"prompt": "a", "completion": "b"}}, r"found a dict with .*Write \[row, \.\.\.\]"),
        ({"dataset": {"trian": [{"text": "a"}]}}, r"Did you mean dataset\.train\?"),
        ({"dataset": {"train": "train.jsonl", "eval": "x"}}, r"Did you mean dataset\.validation\?"),
        ({"dataset": [["a", "b"]]}, "allowed: files, a list of dicts"),
        ({"dataset": None}, "train: found None; allowed: files, a list of dicts"),
        # the entry that is wrong, not the whole list
        ({"dataset": ["a.jsonl", 5]}, r"train\[1\]: found 5 \(int\) among 2 entries; allowed: files, a list of dicts"),
        ({"dataset": "qq/none.jsonl"}, "in Python at the working directory"),
        ({"training": "x"}, "in Python a dict"),
        ({"output_dir": "x"}, r"run_directory=\.\.\."),
        ({"max_steps": 3}, r"Write training=\{'max_steps': \.\.\.\}\.$"),
        ({"eval_dataset": []}, r'Write dataset=\{"train": \.\.\., "validation": \.\.\.\}'),
    ],
)
def test_wrong_arguments_and_types_are_input_errors(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        Task(**{"model": "model", "dataset": "train.jsonl", **keys})


def test_given_rows_have_a_place_in_a_run_directory(folder: Path) -> None:
    task = Task(model="model", dataset={"train": [{"text": "a"}], "validation": [{"text": "b"}]})
    assert (task.name, task.file.dataset.train) == ("task", ("rows/train.jsonl",))
    placed = task.file.with_rows_in(folder / "run" / "rows")
    assert placed.dataset.validation == (str(folder / "run" / "rows" / "validation.jsonl"),)
    assert placed.given["train"].content == b'{"text": "a"}\n'


def test_a_trl_script_becomes_a_sweep() -> None:
    rows = [{"prompt": "a", "completion": "b"}] * 4
    config = SFTConfig(output_dir="runs/mine", learning_rate=1e-4, save_steps=7)
    lora = LoraConfig(r=8, target_modules="all-linear", base_model_name_or_path="model")
    with pytest.warns(UserWarning, match=r"without effect here: SFTConfig\.save_steps=7"):
        task = Task.from_trl(config, lora, {"r": [4, 8], "lora_alpha": "2r"}, dataset=rows, num_gpus=2)
    file = task.file
    assert file.num_gpus == 2
    assert (task.name, file.training.learning_rate, file.lora.r, list(file.search.space)) == (
        "mine",
        1e-4,
        8,
        ["r", "lora_alpha"],
    )
    lora = LoraConfig(target_modules="all-linear", base_model_name_or_path="me/base", revision="v2")
    assert Task.from_trl(SFTConfig(), lora, dataset=rows).file.model_name_or_path == "me/base@v2"
    with pytest.raises(InputError, match=r"Task\.from_trl: model: found nothing"):
        Task.from_trl(SFTConfig(), LoraConfig(target_modules="all-linear"), dataset=rows)
    with pytest.raises(InputError, match=r"Task\.from_trl: serch_space: .*Did you mean search_space\?"):
        Task.from_trl(SFTConfig(), lora, serch_space={}, dataset=rows)  # type: ignore[call-arg]
