"""A trial in a random pack, disturbed, killed and resumed, has the bits of the trial alone."""

from __future__ import annotations

import math

import pytest

from benchmarks.numerics.bases import Base
from benchmarks.numerics.random_packs import compared_packs


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["1b", "8b+fp8"])
def test_a_trial_on_a_true_shape_has_its_bits_in_any_pack(name: str) -> None:
    kills = name == "1b"
    # a number of packs and no time: the machine may be busy compiling
    rows = list(
        compared_packs(Base(name), seconds=math.inf, seed=2, steps=50, kills=kills, most_packs=1 if kills else 2)
    )
    assert len(rows) == 2
    for row in rows:
        assert row["trials"] > 0
        assert row["other_losses"] == 0, row
        assert row["other_weights"] == 0, row
