"""The smallest memory that a task would do with, for errors of too little: by the same figures that refused it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cohort.core.errors import InputError, Problem
from cohort.core.units import format_bytes, format_bytes_above

__all__ = ["SmallestMemory", "find_smallest_memory"]

_LEAST, _MOST = 1 << 10, 1 << 48


@dataclass(frozen=True, kw_only=True)
class SmallestMemory:
    """What a task would do with.

    Attributes:
        num_bytes: The base model's included, within 0.1 %.
        limit_bytes: The task's own limit; None where it has none.
        there_bytes: What the machine has for the task, the base model included.
        is_measured: Whether passes were measured; otherwise they are estimated from above.
    """

    num_bytes: int
    limit_bytes: int | None
    there_bytes: float
    is_measured: bool = False

    @property
    def raised(self) -> str | None:
        """``24.1 GiB or more (...)``, to which the limit would have to be raised; None where no limit helps."""
        if self.limit_bytes is None or self.num_bytes > self.there_bytes:
            return None
        return f"{format_bytes_above(self.num_bytes)} or more ({self._how})"

    def with_hint(self, problem: Problem) -> Problem:
        """Return a problem of too little memory with what would be enough."""
        if (raised := self.raised) is not None:
            return replace(problem, hint=f"Raise memory.limit to {raised}. Or: {problem.hint}")
        takes = f"{format_bytes_above(self.num_bytes)} would be enough, the base model's included ({self._how})"
        return replace(problem, hint=f"{takes}; there are {format_bytes(self.there_bytes)}. {problem.hint}")

    def with_hints(self, problems: Sequence[Problem]) -> list[Problem]:
        """Return several of them."""
        return [self.with_hint(problem) for problem in problems]

    @property
    def _how(self) -> str:
        return "as passes were measured" if self.is_measured else "by an estimate from above"


def find_smallest_memory(sizes_of: Callable[[int], object], *, taken: int) -> int | None:
    """Return the fewest bytes with which sizes are found, those that the base model takes included.

    Args:
        sizes_of: Sizes for so many free bytes; raises InputError where there are too few.
        taken: Bytes of the base model.

    Returns:
        Within 0.1 %, never too few; None where no memory would do.
    """

    def is_enough(free: int) -> bool:
        try:
            sizes_of(free)
        except InputError:
            return False
        return True

    high = _LEAST
    while not is_enough(high):
        high *= 2
        if high > _MOST:
            return None
    low = high // 2
    while high - low > max(1, high >> 10):
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return taken + high
