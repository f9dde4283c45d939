"""What one searched value may be follows from the key of its section."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.core.setting_fields import Refusal
from cohort.tasks.hyperparameters import SEARCHABLE, key_of, multiple_to_plain, parse_value, quoted_number
from cohort.tasks.sections.objective_section import ObjectiveSection
from cohort.tasks.sections.sections import LoraSection, TrainingSection
from cohort.tuning.parameters import MultipleOf


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("learning_rate", 1, 1.0),
        ("r", 8.0, 8),
        ("batch_size", 1e2, 100),
        ("lora_dropout", 0, 0.0),
        ("seed", 2**63 - 1, 2**63 - 1),
        ("use_rslora", False, False),
        ("lr_scheduler_type", "cosine", "cosine"),
        ("lora_alpha", 16, 16.0),
        ("lora_alpha", " 2 * r ", MultipleOf(parameter="r", factor=2)),
        ("lora_alpha", "r", MultipleOf(parameter="r", factor=1)),
        ("lora_alpha", "0.5r", MultipleOf(parameter="r", factor=0.5)),
    ],
)
def test_a_value_becomes_what_training_takes(name: str, written: object, value: object) -> None:
    parsed = parse_value(written, SEARCHABLE[name], at=())
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "written", "hint"),
    [
        ("learning_rate", 0, "Write for example [1e-4, 3e-4]."),
        ("learning_rate", "1e-4", "Remove the quotes: 1e-4."),
        ("learning_rate", float("inf"), "Write a finite number, for example [1e-4, 3e-4]."),
        ("r", 8.5, "Write for example [8, 16]."),
        ("r", True, "Write for example [8, 16]."),
        ("r", "2r", "Write for example [8, 16]."),
        ("seed", 2**63, "Write for example [0, 1, 2]."),
        ("warmup_ratio", 1, "Write for example [0.0, 0.1]."),
        ("use_rslora", 1, "Write for example [true, false]."),
        ("lr_scheduler_type", "cosin", "Write for example [constant, cosine]."),
        ("lora_alpha", "0r", "Write for example 2r."),
        ("batch_size", [1], "Write for example [1, 2, 4]."),
    ],
)
def test_a_value_that_is_refused(name: str, written: object, hint: str) -> None:
    refused = parse_value(written, SEARCHABLE[name], at=(1,))
    assert isinstance(refused, Refusal)
    assert (refused.found, refused.at, refused.hint) == (repr(written), (1,), hint)
    assert refused.allowed == SEARCHABLE[name].allowed


def test_every_searchable_key_is_a_key_of_a_section() -> None:
    sections: tuple[Any, ...] = (LoraSection, TrainingSection, ObjectiveSection)
    keys = {key for section in sections for key in section.model_fields}
    of_modules = {
        "target_modules",
        "target_parameters",
        "exclude_modules",
        "modules_to_save",
        "layers_to_transform",
        "layers_pattern",
    }
    of_all = {"use_bdlora", "rank_pattern", "alpha_pattern", "max_steps", "type", "reference_adapter"}
    of_all |= {"save_projection", "lr_scheduler_kwargs", "function", "adapter_name_or_path"}
    assert set(SEARCHABLE) - {"nblocks"} == keys - of_modules - of_all
    assert key_of("nblocks") == ("lora", "use_bdlora", "nblocks")


@pytest.mark.parametrize("text", ["2r", "r", "0.5r"])
def test_a_multiple_is_written_as_it_is_read(text: str) -> None:
    multiple = parse_value(text, SEARCHABLE["lora_alpha"], at=())
    assert isinstance(multiple, MultipleOf)
    assert multiple_to_plain(multiple) == text


def test_only_text_that_is_a_number_has_quotes_to_remove() -> None:
    assert quoted_number(" 3e-4 ") == "Remove the quotes: 3e-4."
    assert quoted_number("3r") is None
    assert quoted_number(3) is None
