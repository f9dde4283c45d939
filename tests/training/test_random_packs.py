"""A trial in a random pack, disturbed, killed and resumed, has the bits of the trial alone."""

from __future__ import annotations

import pytest

from benchmarks.numerics.bases import Base
from benchmarks.numerics.random_packs import compared_packs


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["1b", "8b+fp8"])
def test_a_trial_on_a_true_shape_has_its_bits_in_any_pack(name: str) -> None:
    rows = list(compared_packs(Base(name), seconds=60, seed=2, steps=50, kills=name == "1b", most_packs=2))
    assert len(rows) == (3 if name == "1b" else 2)
    for row in rows:
        assert row["trials"] > 0
        assert row["other_losses"] == 0, row
        assert row["other_weights"] == 0, row
