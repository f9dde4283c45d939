"""Cuts of a model into stages."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.pipelining.stage_balance import balance_stages


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
