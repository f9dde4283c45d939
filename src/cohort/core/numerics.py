"""Whether a trial's bits may follow from what is trained with it."""

from __future__ import annotations

import enum

__all__ = ["AUTO", "Numerics"]

AUTO = "auto"
"""What a task says where the machine decides between both."""


class Numerics(enum.StrEnum):
    """How a GPU computes; a CPU has one way, which is exact."""

    EXACT = "exact"
    """A packed trial is bit for bit the trial alone: no sum's order follows from neighbours, from how a step is cut
    into passes or from whether a pass was recorded."""
    FAST = "fast"
    """Each product in the form that is fastest for the rows of its pass: bits follow from the pack."""
