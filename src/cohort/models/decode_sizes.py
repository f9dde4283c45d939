"""How many rows recorded decoding passes have, which also says what logits they keep."""

from __future__ import annotations

from cohort.kernels.packed_linear.rows.tables import MOST_ROWS

__all__ = ["DECODE_SIZES", "most_recorded_rows", "rows_of_graph"]

# from MOST_ROWS on rows of an adapter share its factors; trials that train on answers have as many
DECODE_SIZES = (16, 32, 48, 64, 96, 128, 160, 192, MOST_ROWS, 384, 512, 640, 768, 1024, 1536, 2048)


def rows_of_graph(count: int) -> int | None:
    """Return the rows of the graph that runs ``count`` sequences; None where they are too many."""
    return next((size for size in DECODE_SIZES if size >= count), None)


def most_recorded_rows(count: int) -> int:
    """Return the rows of logits that graphs keep once ``count`` sequences have been decoded to their ends.

    Fewer and fewer go on, so that every size is recorded; each graph keeps the logits that it writes.
    """
    largest = rows_of_graph(min(count, DECODE_SIZES[-1]))
    return sum(size for size in DECODE_SIZES if largest is not None and size <= largest) if count else 0
