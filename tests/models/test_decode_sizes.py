"""Few sizes of recorded decoding serve all batches, and say what logits are kept."""

from __future__ import annotations

import pytest

from cohort.models.decode_sizes import most_recorded_rows, rows_of_graph


@pytest.mark.parametrize(
    ("count", "rows"), [(1, 16), (16, 16), (17, 32), (256, 256), (257, 384), (2048, 2048), (2049, None)]
)
def test_few_sizes_serve_all_batches(count: int, rows: int | None) -> None:
    assert rows_of_graph(count) == rows


@pytest.mark.parametrize(("count", "rows"), [(0, 0), (1, 16), (17, 48), (64, 16 + 32 + 48 + 64)])
def test_a_batch_that_shrinks_has_recorded_every_smaller_size(count: int, rows: int) -> None:
    assert most_recorded_rows(count) == rows
    assert most_recorded_rows(3 * 2048) == most_recorded_rows(2048), "more are decoded some at a time"
