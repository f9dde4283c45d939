"""PEFT's configurations become the lora section of a task, or an error names the field."""

from __future__ import annotations

from typing import Any

import pytest
from peft import LoraConfig, PeftConfig, VeraConfig
from peft.tuners.lora.config import BdLoraConfig
from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

from cohort.core.errors import InputError
from cohort.integrations.trl_adapter import PEFT_DEFAULT_MODULES, adapter_section, refuse_unnamed_modules
from cohort.integrations.trl_fields import ConfigFields
from cohort.models.families import FAMILIES


def section(config: PeftConfig) -> dict[str, Any]:
    fields = ConfigFields(type(config).__name__, config)
    refuse_unnamed_modules(fields)
    found = {} if fields.problems else adapter_section(fields)
    if fields.problems:
        raise InputError(fields.problems)
    return found


def test_blocks_are_mapped_with_lists_that_name_nothing() -> None:
    lora = LoraConfig(
        r=8, target_modules=["q_proj"], use_bdlora=BdLoraConfig(nblocks=2, target_modules_bd_b=["q_proj"])
    )
    assert section(lora)["use_bdlora"] == {
        "nblocks": 2,
        "target_modules_bd_a": None,
        "target_modules_bd_b": ["q_proj"],
        "match_strict": True,
    }


def test_variants_are_mapped() -> None:
    lora = LoraConfig(
        r=8,
        target_modules=["q_proj", "v_proj"],
        exclude_modules=["v_proj"],
        layers_to_transform=[0, 1],
        layers_pattern="layers",
        rank_pattern={"q_proj": 4},
        alpha_pattern={"q_proj": 2},
        init_lora_weights="pissa_niter_4",
    )
    assert (
        section(lora).items()
        >= {
            "exclude_modules": ["v_proj"],
            "layers_to_transform": [0, 1],
            "layers_pattern": "layers",
            "rank_pattern": {"q_proj": 4},
            "alpha_pattern": {"q_proj": 2},
            "init_lora_weights": "pissa_niter_4",
        }.items()
    )
    expression = LoraConfig(r=8, target_modules=r".*\.q_proj")
    assert section(expression)["target_modules"] == r".*\.q_proj"


def test_vera_has_a_configuration_of_its_own() -> None:
    vera = VeraConfig(r=32, target_modules="all-linear", vera_dropout=0.1, d_initial=0.5, projection_prng_key=3)
    assert section(vera) == {
        "use_vera": True,
        "r": 32,
        "lora_dropout": 0.1,
        "d_initial": 0.5,
        "projection_prng_key": 3,
        "save_projection": True,
        "target_modules": "all-linear",
    }
    with pytest.raises(InputError, match="VeraConfig: bias"):
        section(VeraConfig(target_modules=["q_proj"], bias="all"))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"target_modules": 3}, "target_modules: found 3; .*an expression or None"),
        ({"bias": "all"}, "LoraConfig: bias: found 'all'"),
        ({"init_lora_weights": "mica"}, "init_lora_weights: found 'mica'"),
        ({"init_lora_weights": False}, "init_lora_weights: found False"),
        ({"task_type": "SEQ_CLS"}, "task_type: found .*SEQ_CLS"),
        ({"lora_bias": True}, "adapters have no biases"),
    ],
)
def test_adapters_that_cannot_be_trained_are_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        section(LoraConfig(**{"r": 8, "target_modules": ["q_proj"], **fields}))


def test_whole_modules_keep_peft_s_name() -> None:
    assert section(LoraConfig(modules_to_save=["lm_head"]))["modules_to_save"] == ["lm_head"]
    assert "modules_to_save" not in section(LoraConfig())


def test_peft_s_own_choice_of_modules_is_the_same_in_every_family() -> None:
    assert section(LoraConfig())["target_modules"] == sorted(PEFT_DEFAULT_MODULES)
    # with fused projections PEFT's names are others; q_proj is then refused with the names that there are
    names = {entry.name for entry in FAMILIES.built_in() if not entry.has_fused_qkv}
    # PEFT does not choose for every family
    for family in names & TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.keys():
        assert TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING[family] == list(PEFT_DEFAULT_MODULES), family


def test_modules_have_names() -> None:
    lora = LoraConfig(target_modules=["q_proj"])
    lora.target_modules = {3, "q_proj"}
    with pytest.raises(InputError, match="LoraConfig: target_modules: found"):
        section(lora)
