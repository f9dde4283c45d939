"""How long rows are: statistics, and a histogram that can be printed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LengthStatistics", "format_histogram", "measure_lengths"]

_MOST_BINS = 12


@dataclass(frozen=True, kw_only=True)
class LengthStatistics:
    """Row lengths in tokens.

    Attributes:
        median: Middle row (the lower of two).
        p95: 95 of 100 rows are at most this long.
        bin_edges: Edges of the histogram, one more than ``bin_counts``; bin i holds lengths in [edge i, edge i+1).
        bin_counts: Rows per bin.
    """

    num_rows: int
    num_tokens: int
    minimum: int
    median: int
    p95: int
    maximum: int
    mean: float
    bin_edges: tuple[int, ...]
    bin_counts: tuple[int, ...]


def measure_lengths(lengths: NDArray[np.int64]) -> LengthStatistics:
    """Return the statistics of ``lengths``, int64 [N]; zeros and no bins for N = 0. All bins have one round width."""
    if len(lengths) == 0:
        return LengthStatistics(
            num_rows=0, num_tokens=0, minimum=0, median=0, p95=0, maximum=0, mean=0.0, bin_edges=(), bin_counts=()
        )
    width = _round_width(int(lengths.max()) + 1)
    edges = np.arange(0, int(lengths.max()) + width + 1, width)
    counts, _ = np.histogram(lengths, bins=edges)
    ordered = np.sort(lengths)
    return LengthStatistics(
        num_rows=len(lengths),
        num_tokens=int(lengths.sum()),
        minimum=int(ordered[0]),
        median=int(ordered[(len(ordered) - 1) // 2]),
        p95=int(ordered[-(-95 * len(ordered) // 100) - 1]),
        maximum=int(ordered[-1]),
        mean=float(lengths.mean()),
        bin_edges=tuple(int(edge) for edge in edges),
        bin_counts=tuple(int(count) for count in counts),
    )


def _round_width(span: int) -> int:
    width = 1
    while True:
        for factor in (1, 2, 5):
            if span <= width * factor * _MOST_BINS:
                return width * factor
        width *= 10


def format_histogram(statistics: LengthStatistics, *, max_length: int | None = None, bar_width: int = 40) -> str:
    """Return the histogram as lines of text, one bin each; bins wholly above ``max_length`` are marked."""
    if not statistics.bin_counts:
        return "no rows"
    most = max(statistics.bin_counts)
    digits = len(str(statistics.bin_edges[-1]))
    lines = [
        f"{statistics.num_rows} rows, {statistics.num_tokens} tokens; shortest {statistics.minimum}, median "
        f"{statistics.median}, 95 % up to {statistics.p95}, longest {statistics.maximum}"
    ]
    for place, count in enumerate(statistics.bin_counts):
        low, high = statistics.bin_edges[place], statistics.bin_edges[place + 1] - 1
        # a bin with rows always shows, however few they are
        bar = "#" * (max(1, round(bar_width * count / most)) if count else 0)
        note = "  > max_length" if max_length is not None and low > max_length else ""
        lines.append(f"{low:>{digits}}-{high:<{digits}} | {bar:<{bar_width}} {count}{note}")
    return "\n".join(lines)
