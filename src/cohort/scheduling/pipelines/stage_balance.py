"""Where a model is cut into stages: so that the longest stage is as short as it can be.

Parts are whole layers (docs/decisions/0044 says what halves would save). The loss head counts on the last stage, or its
rows are divided over the stages, which evens out what whole layers cannot.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

__all__ = ["balance_stages", "divide_head", "divide_rows"]


def balance_stages(
    part_seconds: Sequence[float], *, num_stages: int, first_seconds: float = 0.0, last_seconds: float = 0.0
) -> tuple[tuple[int, int], ...]:
    """Return the range of parts of each stage, so that the longest stage is shortest; equal cuts go to earlier stages.

    Args:
        part_seconds: Seconds of each part, in order; every stage has one at least.
        first_seconds, last_seconds: What the first and the last stage do besides: embedding, loss head.

    Raises:
        ValueError: there are fewer parts than stages.
    """
    count = len(part_seconds)
    if not 1 <= num_stages <= count:
        raise ValueError(f"{count} parts cannot be cut into {num_stages} stages")
    sums = [0.0]
    for seconds in part_seconds:
        sums.append(sums[-1] + seconds)

    def seconds_of(begin: int, end: int) -> float:
        total = sums[end] - sums[begin]
        return total + (first_seconds if begin == 0 else 0.0) + (last_seconds if end == count else 0.0)

    # longest[s][e]: of the first e parts in s stages; cuts as in the linear partition problem
    longest = [[math.inf] * (count + 1) for _ in range(num_stages + 1)]
    cut = [[0] * (count + 1) for _ in range(num_stages + 1)]
    longest[0][0] = 0.0
    for stage in range(1, num_stages + 1):
        for end in range(stage, count + 1):
            for begin in range(stage - 1, end):
                found = max(longest[stage - 1][begin], seconds_of(begin, end))
                if found <= longest[stage][end]:
                    longest[stage][end], cut[stage][end] = found, begin
    ranges: list[tuple[int, int]] = []
    end = count
    for stage in range(num_stages, 0, -1):
        ranges.append((cut[stage][end], end))
        end = cut[stage][end]
    return tuple(reversed(ranges))


def divide_head(stage_seconds: Sequence[float], head_seconds: float) -> tuple[float, ...]:
    """Return the share of the loss head of each stage, so that the longest stage is as short as it can be.

    Args:
        stage_seconds: Of each stage without the head.
        head_seconds: Of the whole head, positive.
    """
    level, below = math.inf, 0.0
    for count, seconds in enumerate(sorted(stage_seconds), start=1):
        # as water in a vessel: the stages that stand out of it get nothing
        if seconds >= level:
            break
        below += seconds
        level = (below + head_seconds) / count
    return tuple(max(0.0, level - seconds) / head_seconds for seconds in stage_seconds)


def divide_rows(num_rows: int, shares: Sequence[float]) -> tuple[range, ...]:
    """Return the rows of each stage, in order, by its share; the shares add up to 1."""
    ends = [round(num_rows * sum(shares[: place + 1])) for place in range(len(shares) - 1)]
    bounds = [0, *ends, num_rows]
    return tuple(range(begin, end) for begin, end in itertools.pairwise(bounds))
