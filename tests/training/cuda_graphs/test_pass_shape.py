"""What a pass needs, which other sizes hold it, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cohort.data.packing import SlotSample
from cohort.data.tokenised import Sample
from cohort.training.cuda_graphs.pass_shape import PADDED_ROW_COST, TRAINED_ROW_COST, PassShape

NEED = PassShape(num_rows=300, num_sequences=3, length=150, num_trained=120)


def test_what_a_pass_needs_is_read_from_its_samples() -> None:
    trained = np.array([False, False, True, True])
    sample = Sample(sample_id=0, tokens=np.ones(4, dtype=np.int32), trained=trained)
    pair = [SlotSample(slot=0, sample=sample), SlotSample(slot=1, sample=sample)]
    assert PassShape.of(pair) == PassShape(num_rows=9, num_sequences=2, length=4, num_trained=4)


@pytest.mark.parametrize("field", ["num_rows", "num_sequences", "length", "num_trained"])
def test_a_size_holds_what_is_smaller_in_everything(field: str) -> None:
    assert NEED.holds(NEED)
    more = replace(NEED, **{field: getattr(NEED, field) + 1})
    assert more.holds(NEED)
    assert not NEED.holds(more)


def test_padded_attention_and_trained_rows_cost_shares_of_a_row() -> None:
    plain = NEED.cost(padded=False)
    assert plain == pytest.approx(300 + TRAINED_ROW_COST * 120)
    assert NEED.cost(padded=True) == pytest.approx(plain + PADDED_ROW_COST * 4 * 150)
