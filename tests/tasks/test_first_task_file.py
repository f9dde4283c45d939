"""The text of a first task file is a valid task that says what it was made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.core.source_location import Place
from cohort.tasks.first_task_file import FirstTaskFile
from cohort.tasks.loading import task_from_mapping
from cohort.tasks.task_file import TaskFile
from cohort.tasks.yaml_lines import parse_yaml

FIRST = FirstTaskFile(
    name="sums.yaml",
    model="model",
    train=["train.jsonl"],
    validation=0.25,
    data_note="60 rows, prompt_completion",
    max_length=64,
    length_note="the longest row has 9",
    num_train_epochs=3,
    learning_rates=("5e-5", "2e-4", "1e-3"),
    ranks=(8, 32),
    batch_sizes=(4,),
    can_answer=True,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    for name in ("train.jsonl", "more rows.jsonl", "validation.jsonl"):
        (tmp_path / name).write_text('{"prompt": "a", "completion": "b"}\n')
    return tmp_path


def read(text: str, folder: Path) -> TaskFile:
    document = parse_yaml(text, where=Place(file="sums.yaml"))
    assert document is not None
    return task_from_mapping(document.data, base_directory=folder)


def test_it_is_a_task_with_the_values_it_was_given(folder: Path) -> None:
    task = read(FIRST.text(), folder)
    assert task.dataset.train == (str(folder / "train.jsonl"),)
    assert (task.dataset.validation, task.dataset.max_length) == (0.25, 64)
    assert task.training.num_train_epochs == 3
    assert len(list(task.search_space().configurations())) == FIRST.num_trials == 6
    assert task.early_exit.rule == "patterns"


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ({"train": ["train.jsonl", "more rows.jsonl"]}, 'train: [train.jsonl, "more rows.jsonl"]'),
        ({"validation": "validation.jsonl"}, "validation: validation.jsonl"),
        ({"columns": {"prompt": "the: text", "completion": "yes"}}, '{prompt: "the: text", completion: "yes"}'),
        ({"chat_template": "plain"}, "chat_template: plain"),
        ({"on_long_rows": "split"}, "on_long_rows: split"),
        ({"model": "#model"}, 'model_name_or_path: "#model"'),
        ({"model": "modell/größe"}, 'model_name_or_path: "modell/größe"'),
    ],
)
def test_what_is_written_is_read_back(folder: Path, fields: dict[str, Any], written: str) -> None:
    first = replace(FIRST, **fields)
    text = first.text()
    assert written in text
    for name in ("#model", "modell/größe"):
        (folder / name).mkdir(parents=True)
    task = read(text, folder)
    if "columns" in fields:
        assert dict(task.dataset.columns) == fields["columns"]
    if "train" in fields:
        assert [Path(path).name for path in task.dataset.train] == fields["train"]
    if "model" in fields:
        assert task.model_name_or_path == str(folder / fields["model"])


def test_commands_in_its_comments_name_the_file() -> None:
    text = replace(FIRST, name="my task.yml").text()
    assert "cohort tune 'my task.yml' -o 'runs/my task'" in text, "as a shell takes it"
    assert "cohort check sums.yaml" in FIRST.text()
    assert "-o runs/sums" in FIRST.text()


def test_comments_stand_in_one_column_and_say_what_there_is() -> None:
    lines = FIRST.text().splitlines()
    commented = [line.partition("  # ")[0] for line in lines if "  # " in line]
    assert {len(written) for written in commented if len(written.rstrip()) < 42} == {42}
    assert any("60 rows, prompt_completion" in line for line in lines)
    assert any("3 x 2 x 1 = 6 configurations" in line for line in lines)
    assert any(line.startswith("  metric: loss") and "exact_match" in line for line in lines)
    # without prompts there is nothing to answer
    assert "exact_match" not in replace(FIRST, can_answer=False).text()
    assert "this share of the rows" in FIRST.text()
    assert "or a share such as 0.1" in replace(FIRST, validation="validation.jsonl").text()
