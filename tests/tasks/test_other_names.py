"""Names that other tools use are accepted for our keys, or translated by a hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.tasks.loading import TaskFile, load_task
from cohort.tasks.other_names import ACCEPTED, NOT_NEEDED, OTHER_WORDS, use_own_names
from cohort.tasks.unknown_keys import known_keys

BASE = "base_model: model\ndataset: {train: train.jsonl}\n"


def load(folder: Path, addition: str, *words: str) -> TaskFile:
    (folder / "train.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (folder / "model").mkdir(exist_ok=True)
    (folder / "task.yaml").write_text(BASE + addition)
    return load_task(folder / "task.yaml", words)


@pytest.mark.parametrize(
    ("addition", "mode"),
    [
        ("", "auto"),
        ("memory: {gradient_checkpointing: never}", "never"),
        ("memory: {gradient_checkpointing: true}", "always"),
        ("memory: {gradient_checkpointing: always}", "always"),
        ("training: {gradient_checkpointing: true}", "always"),
        ("training: {gradient_checkpointing: false}\nmemory:\n", "never"),
        ("training: {gradient_checkpointing: true}\nmemory: {gradient_checkpointing: always, margin: 0.1}", "always"),
    ],
)
def test_gradient_checkpointing_under_each_of_its_names(tmp_path: Path, addition: str, mode: str) -> None:
    assert load(tmp_path, addition).memory.gradient_checkpointing == mode


@pytest.mark.parametrize(
    "words",
    [
        ("--memory.gradient_checkpointing", "always"),
        ("--gradient-checkpointing", "always"),
        ("--training.gradient_checkpointing", "true"),
        ("--gradient_checkpointing=always",),
    ],
)
def test_the_command_line_takes_the_place_of_every_name(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert load(tmp_path, "memory: {gradient_checkpointing: never}", *words).memory.gradient_checkpointing == "always"


def test_a_contradiction_is_an_error(tmp_path: Path) -> None:
    addition = "memory: {gradient_checkpointing: never}\ntraining: {gradient_checkpointing: true}\n"
    with pytest.raises(InputError) as caught:
        load(tmp_path, addition)
    (problem,) = caught.value.problems
    assert str(problem.where) == f"{tmp_path / 'task.yaml'}:4: training.gradient_checkpointing"
    assert problem.found == "training.gradient_checkpointing and memory.gradient_checkpointing"
    assert problem.hint == "Remove training.gradient_checkpointing."


def test_a_wrong_value_has_the_line_of_the_name_that_was_written(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, "memory:\n  margin: 0.1\ntraining:\n  gradient_checkpointing: sometimes\n")
    (problem,) = caught.value.problems
    assert str(problem.where) == f"{tmp_path / 'task.yaml'}:6: memory.gradient_checkpointing"
    assert (problem.found, problem.allowed) == ("'sometimes'", "auto | always | never")


def test_no_section_is_made_without_need() -> None:
    data: dict[str, Any] = {"model_name_or_path": "m", "training": {"seed": 1}}
    assert use_own_names(data, {}) == []
    assert data == {"model_name_or_path": "m", "training": {"seed": 1}}


def test_every_name_leads_to_a_key_there_is() -> None:
    keys = known_keys(TaskFile)
    assert set(OTHER_WORDS.values()) <= set(keys)
    assert {".".join(map(str, key)) for key in ACCEPTED.values()} <= set(keys)
    # a key of ours in the wrong section is to be moved, not removed
    assert not set(NOT_NEEDED) & {key.rpartition(".")[2] for key in keys}
