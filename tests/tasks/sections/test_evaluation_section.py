"""The evaluation section: which metrics are measured, which way is better, and what does not fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cohort.tasks.fields import refusals_of
from cohort.tasks.sections.evaluation_section import EvaluationSection as _EvaluationSection

# a type checker sees the settings that a section is made from, not what pydantic adds
EvaluationSection: Any = _EvaluationSection


def refused(**keys: Any) -> list[tuple[str, str]]:
    with pytest.raises(ValidationError) as caught:
        EvaluationSection.model_validate(keys)
    return [(refusal.found, refusal.hint) for detail in caught.value.errors() for refusal in refusals_of(detail["ctx"])]


def test_the_loss_is_always_measured_and_not_listed() -> None:
    assert EvaluationSection().measured == ()
    section = EvaluationSection(metric="exact_match", metrics=["loss", "token_f1"])
    assert section.measured == ("exact_match", "token_f1")
    assert EvaluationSection(metrics="contains").metrics == ("contains",), "one name need not be a list"
    assert EvaluationSection(metrics=None).metrics == ()
    assert section.model_dump(mode="json")["metrics"] == ["loss", "token_f1"]


@pytest.mark.parametrize(
    ("metric", "keys", "maximize", "name"),
    [
        ("loss", {}, False, "loss"),
        ("exact_match", {}, True, "exact_match"),
        ("choice_accuracy", {}, True, "choice_accuracy"),
        ("mine.py:error_rate", {"greater_is_better": False}, False, "error_rate"),
        ("mine.py:score", {}, True, "score"),
    ],
)
def test_which_way_is_better(metric: str, keys: dict[str, Any], *, maximize: bool, name: str) -> None:
    section = EvaluationSection(metric=metric, **keys)
    assert (section.maximize, section.metric_name) == (maximize, name)


def test_text_is_generated_only_for_metrics_of_text() -> None:
    assert not EvaluationSection().generates
    assert not EvaluationSection(metric="choice_accuracy").generates
    assert EvaluationSection(metric="choice_accuracy", metrics=["contains"]).generates


def test_files_of_functions_are_known_and_modules_are_not_files() -> None:
    section = EvaluationSection(metric="/a/mine.py:score", metrics=["package.module:other", "exact_match"])
    assert section.function_files == (Path("/a/mine.py"),)


def test_options_reach_the_metrics() -> None:
    section = EvaluationSection(metric="exact_match", normalize=True, answer_pattern=r"#### (.+)")
    assert (section.options.normalize, section.options.answer_pattern) == (True, r"#### (.+)")


@pytest.mark.parametrize(
    ("keys", "found", "hint"),
    [
        ({"metric": ["loss"]}, "['loss']", "further metrics go to evaluation.metrics"),
        ({"metric": ""}, "''", "Write loss"),
        ({"metric": "exact-match"}, "'exact-match'", "Did you mean exact_match?"),
        ({"metrics": [3]}, "[3]", "[exact_match, token_f1]"),
        ({"metrics": {"a": 1}}, "{'a': 1}", "[exact_match, token_f1]"),
        ({"metrics": ["contains", "contains"]}, "contains twice", "Remove one."),
        ({"metric": "a.py:f", "metrics": ["b.py:f"]}, "f twice", "Remove one."),
        ({"answer_pattern": "("}, "'('", "#### (.+)"),
        ({"metric": "rouge_l", "normalize": True}, "normalize with rouge_l", "Remove normalize"),
        ({"answer_pattern": "x"}, "answer_pattern with loss", "Remove answer_pattern"),
        ({"greater_is_better": False}, "greater_is_better: false with metric: loss", "Remove greater_is_better."),
    ],
)
def test_what_is_refused_says_what_to_write(keys: dict[str, Any], found: str, hint: str) -> None:
    told = refused(**keys)
    assert len(told) == 1
    assert found in told[0][0]
    assert hint in told[0][1]


def test_all_that_does_not_fit_together_is_told_at_once() -> None:
    assert len(refused(metric="token_f1", normalize=True, greater_is_better=False)) == 2
