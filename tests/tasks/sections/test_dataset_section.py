"""The dataset section is checked by the data layer's own settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError, Problem
from cohort.data.settings import DatasetSettings
from cohort.tasks.loading import task_from_mapping


def problems_of(folder: Path, **dataset: Any) -> tuple[Problem, ...]:
    data = {"model_name_or_path": "org/model", "dataset": {"train": "org/rows", **dataset}}
    with pytest.raises(InputError) as caught:
        task_from_mapping(data, base_directory=folder, name="t")
    return caught.value.problems


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_length", 1),
        ("max_train_samples", 0),
        ("format", "chat"),
        ("on_long_rows", "cut"),
        ("validation", 1.0),
        ("columns", {"promt": "x"}),
        ("prompt_template", "a {b"),
    ],
)
def test_section_and_settings_refuse_the_same(tmp_path: Path, key: str, value: Any) -> None:
    (written,) = problems_of(tmp_path, **{key: value})
    with pytest.raises(InputError) as caught:
        DatasetSettings(train="org/rows", **{key: value})
    (direct,) = caught.value.problems
    assert (written.where.key, written.found, written.allowed) == (direct.where.key, direct.found, direct.allowed)


def test_keys_that_do_not_fit_together(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, prompt_template="Q: {q}", format="text")
    assert str(problem.where) == "t: dataset.prompt_template"
    assert "format: text" in problem.found


@pytest.mark.parametrize("files", ["rows.jsonl", ["a.jsonl", "b.jsonl"]])
def test_files_in_the_place_of_the_section_are_told_where_they_belong(tmp_path: Path, files: Any) -> None:
    with pytest.raises(InputError, match=r"Write dataset: \{train: FILE\}"):
        task_from_mapping({"model_name_or_path": "org/model", "dataset": files}, base_directory=tmp_path)


def test_a_template_that_yaml_reads_as_a_mapping_is_told_to_be_quoted(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, prompt_template={"question": None})
    assert "which YAML reads as a mapping" in problem.found
    assert "quotes" in problem.hint


def test_every_key_reaches_the_data_layer(tmp_path: Path) -> None:
    section = {"train": ["a/b", "c/d"], "validation": 0.2, "columns": {"prompt": "q"}, "max_train_samples": 5}
    data = {"model_name_or_path": "org/model", "dataset": section, "training": {"seed": 4}}
    settings = task_from_mapping(data, base_directory=tmp_path).dataset_settings()
    assert (settings.train, settings.validation, settings.seed) == (("a/b", "c/d"), 0.2, 4)
    assert (settings.columns, settings.max_train_samples) == ({"prompt": "q"}, 5)
