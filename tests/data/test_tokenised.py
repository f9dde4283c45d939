"""Tokenised rows are flat arrays; a sample is a view of its part."""

from __future__ import annotations

import numpy as np

from cohort.data.tokenised import TokenisedRows

ROWS = TokenisedRows(
    tokens_T=np.arange(5, dtype=np.int32),
    trained_T=np.asarray([False, True, False, False, True]),
    offsets=np.asarray([0, 2, 5], dtype=np.int64),
    prompts=("", ""),
    references=("", ""),
    sources=("f:1", "f:2"),
    fingerprint="0",
)


def test_a_sample_is_a_view_of_its_row() -> None:
    sample = ROWS.sample(1)
    assert (sample.sample_id, sample.tokens.tolist(), sample.trained.tolist()) == (1, [2, 3, 4], [False, False, True])
    assert sample.tokens.base is not None, "nothing is copied"
    assert (len(ROWS), ROWS.lengths.tolist()) == (2, [2, 3])
