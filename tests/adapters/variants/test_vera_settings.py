"""VeRA's settings: what no adapter can begin with."""

from __future__ import annotations

import pytest

from cohort.adapters.spec import AdapterSpec, VariantError
from cohort.adapters.variants.vera_settings import VectorAdapter


def test_vectors_that_could_not_learn_are_refused() -> None:
    with pytest.raises(ValueError, match="d_initial must be above 0"):
        VectorAdapter(d_initial=0.0)
    with pytest.raises(ValueError, match="projection_prng_key"):
        VectorAdapter(projection_prng_key=-1)


@pytest.mark.parametrize(
    "other", [{"use_dora": True}, {"init_lora_weights": "gaussian"}, {"rank_pattern": (("q_proj", 2),)}]
)
def test_a_spec_with_vectors_is_nothing_else(other: dict[str, object]) -> None:
    with pytest.raises(VariantError, match="use_vera with"):
        AdapterSpec(r=4, lora_alpha=1.0, use_vera=VectorAdapter(), **other)  # type: ignore[arg-type]


def test_the_state_is_one_row_behind_the_last_tile() -> None:
    spec = AdapterSpec(r=17, lora_alpha=99.0, use_vera=VectorAdapter())
    assert (spec.num_factor_rows, spec.first_state_row, spec.num_rows, spec.num_trained_rows) == (17, 32, 33, 1)
    assert spec.scale == 1.0
