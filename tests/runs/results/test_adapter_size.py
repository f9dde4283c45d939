"""Sizes of adapters that ranks alone do not tell: blocks have fewer parameters."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.runs.results.adapter_size import adapter_size

# two layers of a query projection (column-parallel) and an output projection (row-parallel)
SHAPES = {"q_proj": (64, 32, 2), "o_proj": (32, 64, 2)}
SETTINGS: dict[str, Any] = {"r": 8, "lora_alpha": 16}


def test_plain_lora_has_both_factors_whole() -> None:
    found = adapter_size(SETTINGS, shapes=SHAPES, lora={})
    # A and B of four linears: r * (inputs + outputs) each
    assert found.trainable_parameters == 8 * (96 + 96) * 2
    assert (found.rank_of_equal_lora, found.scale) == (8.0, 2.0)


def test_one_factor_of_each_linear_is_in_blocks() -> None:
    found = adapter_size({**SETTINGS, "nblocks": 4}, shapes=SHAPES, lora={"use_bdlora": {}})
    # column-parallel: the outputs; row-parallel: the inputs
    entries = 2 * ((64 + 32 // 4) + (32 // 4 + 64))
    assert found.trainable_parameters == 8 * entries
    assert found.rank_of_equal_lora == pytest.approx(8 * entries / 384)
    assert adapter_size({**SETTINGS, "nblocks": 1}, shapes=SHAPES, lora={"use_bdlora": {}}).rank_of_equal_lora == 8.0


def test_the_task_says_which_linears_have_blocks() -> None:
    lora = {"use_bdlora": {"target_modules_bd_a": ["q_proj"], "target_modules_bd_b": []}}
    found = adapter_size({**SETTINGS, "nblocks": 4}, shapes=SHAPES, lora=lora)
    assert found.trainable_parameters == 8 * 2 * ((64 // 4 + 32) + (32 + 64))


def test_vera_has_vectors_alone() -> None:
    found = adapter_size({**SETTINGS, "use_vera": True}, shapes=SHAPES, lora={})
    assert found.trainable_parameters == 2 * (32 + 8) + 2 * (64 + 8)
    assert found.scale == 1.0


def test_rank_stabilised_lora_scales_by_the_root() -> None:
    assert adapter_size({**SETTINGS, "r": 16, "use_rslora": True}, shapes=SHAPES, lora={}).scale == pytest.approx(4.0)
