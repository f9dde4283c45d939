"""Cuts of a model into stages."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.scheduling.pipelines.stage_balance import balance_stages, divide_head, divide_rows


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 4), st.integers(0, 9), st.integers(0, 9))
def test_no_other_cuts_have_a_shorter_longest_stage(parts: list[int], num_stages: int, first: int, last: int) -> None:
    if num_stages > len(parts):
        with pytest.raises(ValueError, match="cannot be cut"):
            balance_stages(parts, num_stages=num_stages)
        return

    def longest(ranges: tuple[tuple[int, int], ...]) -> float:
        sums = [sum(parts[begin:end]) for begin, end in ranges]
        sums[0] += first
        sums[-1] += last
        return max(sums)

    found = balance_stages(parts, num_stages=num_stages, first_seconds=first, last_seconds=last)
    assert found[0][0] == 0
    assert found[-1][1] == len(parts)
    assert all(begin < end for begin, end in found)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(found))
    cuts = itertools.combinations(range(1, len(parts)), num_stages - 1)
    every = [tuple(itertools.pairwise((0, *cut, len(parts)))) for cut in cuts]
    assert longest(found) == min(map(longest, every))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.floats(0.1, 20.0), st.integers(0, 300))
def test_a_head_is_divided_so_that_the_stages_with_a_share_end_together(
    layers: list[int], head: float, num_rows: int
) -> None:
    shares = divide_head(layers, head)
    assert sum(shares) == pytest.approx(1.0)
    ends = [own + share * head for own, share in zip(layers, shares, strict=True)]
    longest = max([end for end, share in zip(ends, shares, strict=True) if share > 0])
    for end, share in zip(ends, shares, strict=True):
        assert end == pytest.approx(longest) if share > 0 else end >= longest - 1e-9
    rows = divide_rows(num_rows, shares)
    assert [row for own in rows for row in own] == list(range(num_rows))
    assert all(abs(len(own) - num_rows * share) <= 1 for own, share in zip(rows, shares, strict=True))
