"""YAML 1.2 is read as plain values with lines; what is no YAML, or no task, is refused at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.source_location import Place
from cohort.tasks.loading import load_task
from cohort.tasks.yaml_lines import TaskOrigin, parse_yaml
from tests.tasks.task_files import BASE, problems_of, write


def test_yaml_is_1_2(folder: Path) -> None:
    text = BASE.replace("}", ", columns: {prompt: on, completion: no}}") + "training: {learning_rate: 1e-5}"
    task = load_task(write(folder, text))
    assert task.dataset.columns == {"prompt": "on", "completion": "no"}
    assert task.training.learning_rate == 1e-5


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("", 1, "an empty file"),
        ("# only a comment\n", 1, "an empty file"),
        ("- a: 1\n- b: 2\n", 1, "a list of 2 entries"),
        ("just words\n", 1, "the text 'just words'"),
        ("a: [1\nb: 2\n", 2, "not YAML"),
        ("a: 1\n\tb: 2\n", 2, "not YAML"),
        ("a: b: c\n", 1, "not YAML"),
        ("a: !!python/object:os.system x\n", 1, "the tag"),
        ("a: 1\n---\nb: 2\n", 2, "not YAML"),
    ],
)
def test_a_file_that_is_no_task(folder: Path, text: str, line: int, found: str) -> None:
    problems = problems_of(folder, text)
    assert str(problems[0].where) == f"{folder / 'task.yaml'}:{line}"
    assert found in problems[0].found


def test_every_key_and_entry_knows_its_line() -> None:
    document = parse_yaml("a: 1\nb:\n  c: [x,\n      y]\n", where=Place(file="t.yaml"))
    assert document is not None
    assert document.data == {"a": 1, "b": {"c": ["x", "y"]}}
    assert document.lines == {("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "c", 0): 3, ("b", "c", 1): 4}


def test_the_origin_of_a_key_is_its_line_its_section_or_its_option() -> None:
    origin = TaskOrigin(
        name="t.yaml", lines={("lora",): 2, ("lora", "r"): 3}, overrides={("search", "space", "r"): "--r"}
    )
    assert str(origin.where("lora.r")) == "t.yaml:3: lora.r"
    assert str(origin.where("lora.lora_alpha")) == "t.yaml:2: lora.lora_alpha"
    assert str(origin.where("training.seed")) == "t.yaml: training.seed"
    assert str(origin.where(("search", "space", "r", 1))) == "command line --r: [1]"


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        # one key without a value, as YAML reads it
        (BASE.replace("}", ", columns: {prompt:question}}"), 2, "Write {prompt: question}."),
        (BASE.replace("}", ", columns: {prompt:[a]}}"), 2, "Write a space behind the colon: `prompt: [a]`."),
        ("model_name_or_path: m\ndataset:\n  train: a\n  validation:b\n", 4, "colon: `validation: b`."),
        ("model_name_or_path: m\ndataset:\n  train:a.jsonl\n", 2, "colon: `train: a.jsonl`."),
        ("model_name_or_path: m\ndataset:\n\ttrain: a\n", 3, "Indent with spaces: the line begins with a tab."),
    ],
)
def test_a_missing_space_and_a_tab_are_named(folder: Path, text: str, line: int, hint: str) -> None:
    (problem, *_) = problems_of(folder, text)
    assert str(problem.where).startswith(f"{folder / 'task.yaml'}:{line}")
    assert hint in problem.hint


def test_a_colon_inside_a_word_is_text() -> None:
    text = 'a: {b: "c:d", e: http://x, f: ["g:h", i:j], "k:l": }\n'
    document = parse_yaml(text, where=Place(file="t.yaml"))
    assert document is not None
    assert document.data == {"a": {"b": "c:d", "e": "http://x", "f": ["g:h", "i:j"], "k:l": None}}
