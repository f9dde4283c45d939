"""Long text in pieces: every token is trained once, and nothing is longer than a piece may be."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.data.pieces import split_tokens


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 60),
    st.integers(4, 12),
    st.integers(0, 2),
    st.sampled_from([None, 0]),
    st.randoms(use_true_random=False),
)
def test_each_token_is_trained_once(
    length: int, most: int, overlap: int, first: int | None, random: np.random.RandomState
) -> None:
    tokens = np.arange(length, dtype=np.int32)
    trained = np.asarray([index > 0 and random.random() < 0.7 for index in range(length)])
    pieces = list(split_tokens(tokens, trained, most=most, overlap=overlap, first=first))
    assert all(len(piece) <= most and len(piece) == len(mask) and not mask[0] for piece, mask in pieces)
    found = np.concatenate([piece[mask] for piece, mask in pieces])
    # without context before it, the first token of a piece cannot be predicted
    lost = set() if overlap or first == 0 else {int(piece[0]) for piece, _ in pieces[1:]}
    assert list(found) == [token for token in tokens[trained] if int(token) not in lost]
    for (before, _), (after, mask) in pairwise(pieces):
        head = int(first == 0)
        assert list(after[head : head + overlap]) == list(before[len(before) - overlap :])
        assert not mask[: head + overlap].any()


def test_an_overlap_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        list(split_tokens(np.zeros(9, dtype=np.int32), np.ones(9, dtype=np.bool_), most=4, overlap=4, first=None))
