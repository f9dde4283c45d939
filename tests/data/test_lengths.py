from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cohort.data.lengths import format_histogram, measure_lengths


@given(lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=50))
def test_every_row_is_in_one_bin(lengths: list[int]) -> None:
    found = measure_lengths(np.asarray(lengths, dtype=np.int64))
    assert sum(found.bin_counts) == found.num_rows == len(lengths)
    assert len(found.bin_edges) == len(found.bin_counts) + 1
    assert len(found.bin_counts) <= 13
    assert found.bin_edges[0] == 0
    for place, count in enumerate(found.bin_counts):
        assert count == sum(found.bin_edges[place] <= length < found.bin_edges[place + 1] for length in lengths)
    assert found.minimum <= found.median <= found.p95 <= found.maximum


def test_statistics_by_hand() -> None:
    found = measure_lengths(np.arange(1, 101))
    assert (found.minimum, found.median, found.p95, found.maximum, found.mean) == (1, 50, 95, 100, 50.5)
    assert found.num_tokens == 5050
    assert found.bin_edges[:3] == (0, 10, 20)


def test_the_histogram_shows_rare_lengths_and_the_limit() -> None:
    text = format_histogram(measure_lengths(np.asarray([5] * 999 + [95])), max_length=50, bar_width=10)
    lines = text.splitlines()
    assert lines[0].startswith("1000 rows, 5090 tokens; shortest 5, median 5, 95 % up to 5, longest 95")
    assert lines[1] == "  0-9   | ########## 999"
    assert lines[-1] == " 90-99  | #          1  > max_length"
    assert format_histogram(measure_lengths(np.empty(0, dtype=np.int64))) == "no rows"
