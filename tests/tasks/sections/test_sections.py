"""Sections turn what users write into what the layers read, and write it back."""

from __future__ import annotations

from typing import Any

from cohort.tasks.sections.evaluation_section import EvaluationSection
from cohort.tasks.sections.sections import GRID_LIMIT, SearchSection
from cohort.tasks.sections.sections import LoraSection as _LoraSection
from cohort.tuning.evaluation_times import EvaluationSettings
from cohort.tuning.parameters import MultipleOf
from tests.tasks.sections.refused_values import refused

# a type checker sees the settings that a section is made from, not what pydantic adds
LoraSection: Any = _LoraSection


def test_target_modules_are_a_word_or_a_list() -> None:
    assert LoraSection.model_validate({"target_modules": ["q_proj"]}).target_modules == ("q_proj",)
    assert LoraSection().model_dump(mode="json")["target_modules"] == "all-linear"
    assert "''" in refused(LoraSection, target_modules="")


def test_alpha_is_written_back_as_a_multiple() -> None:
    section = LoraSection.model_validate({"lora_alpha": "2r"})
    assert section.lora_alpha == MultipleOf(parameter="r", factor=2)
    assert section.model_dump(mode="json")["lora_alpha"] == "2r"


def test_the_evaluation_section_has_the_defaults_of_the_decisions() -> None:
    section = EvaluationSection()
    assert (section.max_examples, section.every_fraction) == (
        EvaluationSettings().max_examples,
        EvaluationSettings().every_fraction,
    )


def test_a_grid_must_be_listable_and_small() -> None:
    assert "a range of weight_decay without step or num" in refused(
        SearchSection, space={"weight_decay": {"min": 0, "max": 1}}
    )
    assert "a grid of 10,001 trials" in refused(SearchSection, space={"seed": {"min": 0, "max": GRID_LIMIT, "step": 1}})
    assert "first_trials with sampler: grid" in refused(SearchSection, first_trials=3)
    SearchSection.model_validate({"sampler": "random", "space": {"weight_decay": {"min": 0, "max": 1}}})
