"""Which hyperparameters follow another: as the run's task says, not as its trials look."""

from __future__ import annotations

import pytest

from cohort.report.followed_parameters import followed_parameters
from cohort.runs.fact_groups import TaskFacts
from cohort.runs.facts import RunFacts
from cohort.runs.records import JsonValue
from cohort.tasks.task_file import TaskFile


def _facts(*, lora: dict[str, JsonValue] | None = None, space: dict[str, JsonValue] | None = None) -> RunFacts:
    task = {
        "model_name_or_path": "model",
        "dataset": {"train": "train.jsonl"},
        "lora": lora or {},
        "search": {"space": space or {}},
    }
    return RunFacts(task=TaskFacts(document=TaskFile.model_validate(task).model_dump(mode="json")))


@pytest.mark.parametrize(
    ("lora", "space"),
    [
        ({"lora_alpha": "2r"}, {"r": [4, 8]}),
        ({}, {"r": [4, 8], "lora_alpha": "2r"}),
        ({}, {"r": [4, 8], "lora_alpha": ["r"]}),
        ({"lora_alpha": 32}, {"r": [4, 8], "lora_alpha": "0.5 * r"}),
    ],
)
def test_a_multiple_follows_its_rank(lora: dict[str, JsonValue], space: dict[str, JsonValue]) -> None:
    assert followed_parameters(_facts(lora=lora, space=space)) == {"lora_alpha": "r"}


@pytest.mark.parametrize(
    ("lora", "space"),
    [
        ({}, {"r": [4, 8]}),
        ({}, {"r": [4, 8], "lora_alpha": ["1r", "2r"]}),
        ({"lora_alpha": "2r"}, {"r": [4, 8], "lora_alpha": [8, 16]}),
        ({"lora_alpha": "2r"}, {"r": [4, 8], "lora_alpha": {"values": ["2r"], "when": {"batch_size": 2}}}),
    ],
)
def test_what_is_searched_itself_follows_nothing(lora: dict[str, JsonValue], space: dict[str, JsonValue]) -> None:
    assert followed_parameters(_facts(lora=lora, space=space)) == {}


def test_nothing_follows_where_no_task_is_recorded() -> None:
    assert followed_parameters(RunFacts()) == {}
