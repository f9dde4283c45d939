"""Where a model is cut into stages: so that the longest stage is as short as it can be.

Parts are whole layers (docs/decisions/0044 says what halves would save). The loss head belongs to the last stage and
counts there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["balance_stages"]


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
