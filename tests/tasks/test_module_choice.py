"""Keys that tell modules apart: PEFT's forms are accepted, and a slip is named with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.tasks.loading import TaskFileError, task_from_mapping
from cohort.tasks.sections.sections import LoraSection


def test_peft_s_forms_are_accepted() -> None:
    kind: Any = LoraSection
    section = kind.model_validate(
        {
            "exclude_modules": ["down_proj"],
            "layers_to_transform": 1,
            "layers_pattern": "layers",
            "rank_pattern": {"q_proj": 4, r"layers\.0\..*v_proj": 2.0},
            "alpha_pattern": {"q_proj": 8},
        }
    )
    assert section.layers_to_transform == (1,)
    assert section.layers_pattern == ("layers",)
    assert section.rank_pattern == {"q_proj": 4, r"layers\.0\..*v_proj": 2}
    assert kind.model_validate(section.model_dump(mode="json")) == section


def test_experts_alone_are_adapted_with_no_modules() -> None:
    kind: Any = LoraSection
    section = kind.model_validate({"target_modules": [], "target_parameters": ["mlp.experts.down_proj"]})
    assert section.target_modules == ()
    assert section.target_parameters == ("mlp.experts.down_proj",)
    assert kind.model_validate(section.model_dump(mode="json")) == section


@pytest.mark.parametrize(
    ("lora", "place", "words"),
    [
        ({"exclude_modules": []}, "lora.exclude_modules", "[down_proj]"),
        ({"exclude_modules": "("}, "lora.exclude_modules", "regular expression"),
        ({"layers_to_transform": [0, -1]}, "lora.layers_to_transform", "[0, 1, 2]"),
        ({"target_parameters": "mlp.experts.down_proj"}, "lora.target_parameters", "[mlp.experts.gate_up_proj"),
        ({"layers_pattern": 3}, "lora.layers_pattern", "layers"),
        ({"rank_pattern": {"q_proj": 2.5}}, "lora.rank_pattern", "a whole number of at least 1"),
        ({"rank_pattern": ["q_proj"]}, "lora.rank_pattern", "a mapping"),
        ({"alpha_pattern": {"q_proj": 0}}, "lora.alpha_pattern", "a number above 0"),
        ({"alpha_pattern": {"[": 4}}, "lora.alpha_pattern", "regular expression"),
        ({"init_lora_weights": "pisa"}, "lora.init_lora_weights", "pissa_niter_N"),
        ({"init_lora_weights": False}, "lora.init_lora_weights", "gaussian"),
    ],
)
def test_slips_are_named(lora: dict[str, object], place: str, words: str) -> None:
    data = {"model_name_or_path": "m", "dataset": {"train": "t.jsonl"}, "lora": lora}
    with pytest.raises(TaskFileError) as caught:
        task_from_mapping(data, base_directory=Path())
    # the rows that are missing as well are another problem
    (problem,) = (problem for problem in caught.value.problems if "lora" in str(problem.where))
    assert place in str(problem.where)
    assert words in str(problem)
