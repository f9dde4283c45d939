"""How long a task still trains, where that is known: towards its end, when no trial waits for a place or a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["TimeLeft"]


class TimeLeft:
    """Extrapolates from one step boundary to the end, by the steps that trials took since the boundary before."""

    def __init__(self) -> None:
        """Know of no boundary yet."""
        self._at, self._before = 0.0, dict[int, int]()

    def at_boundary(self, now: float, steps_left: Mapping[int, int]) -> float:
        """Return the seconds in which the last of the trials would take its last step; inf where that is unknown.

        A decision that stops a trial makes it less.

        Args:
            now: Seconds, by any clock that only runs forward.
            steps_left: Steps that each trial has still to take; none where not all that are to train are known.
        """
        at, before = self._at, self._before
        self._at, self._before = now, dict(steps_left)
        taken = max((before[trial_id] - left for trial_id, left in steps_left.items() if trial_id in before), default=0)
        if taken <= 0:
            return math.inf
        return max(steps_left.values()) * (now - at) / taken
