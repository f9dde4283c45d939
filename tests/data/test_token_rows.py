"""Rows in flat arrays: where each lies, and a fingerprint of what shaped them."""

from __future__ import annotations

import numpy as np

from cohort.core.source_location import Place
from cohort.data.token_rows import TokenRow, flattened


def row(*tokens: int, other: TokenRow | None = None, label: bool | None = None) -> TokenRow:
    trained = np.array([False, *[True] * (len(tokens) - 1)])
    return TokenRow(
        where=Place(text="a.jsonl"),
        tokens=np.array(tokens, dtype=np.int32),
        trained=trained,
        prompt="p",
        reference="r",
        columns={"answer": tokens[0]},
        other=other,
        label=label,
    )


def test_rows_lie_one_after_the_other_a_pair_as_two() -> None:
    rows = flattened([row(1, 2, 3), row(4, 5, other=row(6, 7))], identity="x")
    assert rows.tokens_T.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert rows.offsets.tolist() == [0, 3, 5, 7]
    assert rows.columns == ('{"answer": 1}', '{"answer": 4}', '{"answer": 6}')
    assert flattened([row(1, 2)], identity="x", keeps_columns=False).columns == ()


def test_fingerprints_follow_content_and_identity() -> None:
    kinds = [
        flattened([row(1, 2)], identity="x"),
        flattened([row(1, 3)], identity="x"),
        flattened([row(1, 2)], identity="y"),
        flattened([row(1, 2, label=True)], identity="x"),
    ]
    assert len({rows.fingerprint for rows in kinds}) == len(kinds)
    assert flattened([row(1, 2)], identity="x").fingerprint == kinds[0].fingerprint


def test_a_label_and_the_other_answer_make_another_row() -> None:
    assert row(1, 2).content == row(1, 2).content
    assert len({row(1, 2).content, row(1, 2, label=True).content, row(1, 2, other=row(3, 4)).content}) == 3
    assert row(1, 2, 3, other=row(4, 5)).num_trained == 3
