"""Modules whose scale differs from the slot's have it in the columns of their B."""

from __future__ import annotations

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.module_scales import module_scales
from cohort.adapters.spec import AdapterSpec

LAYOUT = AdapterLayout({"layers.0.q_proj": (2, 3), "layers.0.v_proj": (2, 1)})


def test_patterns_give_b_the_module_s_own_scale() -> None:
    spec = AdapterSpec(r=4, lora_alpha=8.0, rank_pattern=(("q_proj", 2),), alpha_pattern=(("v_proj", 1.0),))
    found = module_scales(LAYOUT, spec)
    assert found is not None
    # 8 / 2 and 1 / 4 against 8 / 4
    assert found.tolist() == [1, 1, 2, 2, 2, 1, 1, 0.125]


def test_a_pattern_that_changes_no_scale_needs_none() -> None:
    spec = AdapterSpec(r=4, lora_alpha=8.0, rank_pattern=(("q_proj", 2),), alpha_pattern=(("q_proj", 4.0),))
    assert module_scales(LAYOUT, spec) is None
    assert module_scales(LAYOUT, AdapterSpec(r=4, lora_alpha=8.0)) is None
