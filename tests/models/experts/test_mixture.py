"""What a family says of its experts is checked, and names the stacked parameters as PEFT does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cohort.models.experts.mixture import MixtureOfExperts

OWN = MixtureOfExperts(
    num_experts=6, experts_per_token=2, intermediate_size=8, renormalises=False, sparse_layers=frozenset({1})
)


def test_a_dense_layer_has_no_parameters() -> None:
    assert OWN.parameters(0, hidden_size=4) == {}
    assert OWN.parameters(1, hidden_size=4) == {
        "model.layers.1.mlp.experts.gate_up_proj": (6, 4, 16),
        "model.layers.1.mlp.experts.down_proj": (6, 8, 4),
    }


@pytest.mark.parametrize(
    ("values", "words"),
    [({"num_experts": 0}, "num_experts is 0"), ({"experts_per_token": 7}, "7 experts per token of 6")],
)
def test_sizes_that_contradict_each_other_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(OWN, **values)
