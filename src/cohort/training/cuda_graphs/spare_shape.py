"""Sizes that are recorded before any pass asks for them, while the device is busy and there is nothing else to record.

Trials leave a pack together, at a comparison, and others end one after the other: passes become smaller than any that
was announced. A size that is recorded then makes the device wait; a ladder of sizes that is there serves most of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from cohort.training.cuda_graphs.pass_shape import PassShape

__all__ = ["spare_shape"]

# each step of the ladder is this share of the next larger one, down to the rows of a pass that waits for weights and
# not for arithmetic
RATIO, LEAST_ROWS = 0.85, 256
# more sequences and trained rows for each row than of passes so far, so that a size is not recorded again for a few
SPARE_SHARE = 1.1


def spare_shape(
    recorded: Sequence[PassShape],
    *,
    before: Collection[PassShape],
    rounded_up: Callable[[PassShape], PassShape],
    most_rows: int,
) -> PassShape | None:
    """Return the largest shape that the ladder lacks; None where it is whole, or no pass has come.

    Args:
        recorded: The shapes that there are.
        before: Some passes; those of fewer trials have about as many sequences and trained rows for each row.
        rounded_up: Returns the shape that is recorded for a need.
        most_rows: Of what may be recorded.
    """
    if not before or not recorded:
        return None
    sequences = max(need.num_sequences / need.num_rows for need in before)
    trained = max(need.num_trained / need.num_rows for need in before)
    length = max(need.length for need in before)
    num_rows = max(shape.num_rows for shape in recorded)

    def need_of(num_rows: int, *, share: float = 1.0) -> PassShape:
        return PassShape(
            num_rows=num_rows,
            num_sequences=math.ceil(share * sequences * num_rows),
            length=length,
            num_trained=min(num_rows, math.ceil(share * trained * num_rows)),
        )

    while (num_rows := int(RATIO * num_rows)) >= LEAST_ROWS:
        need, shape = need_of(num_rows), rounded_up(need_of(num_rows, share=SPARE_SHARE))
        # one of longer rows, or of fewer trained ones, may hold none of these
        most = max(shape.num_rows, num_rows / RATIO)
        is_there = any(other.num_rows <= most and other.holds(need) for other in recorded)
        if shape.num_rows <= most_rows and not is_there:
            return shape
    return None
