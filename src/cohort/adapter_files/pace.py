"""How far a batch of answers is, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.core.clock import Clock
from cohort.ranks.answers import Answer

__all__ = ["BatchProgress", "Pace"]


@dataclass(frozen=True, kw_only=True)
class BatchProgress:
    """How far a batch is.

    Attributes:
        num_done: Prompts answered, those of an earlier process included.
        tokens_per_second: Generated tokens; None before there are any.
        seconds_left: By the lengths of the answers so far; None before a twentieth of the prompts is answered.
    """

    phase: str
    num_done: int
    num_rows: int
    elapsed_seconds: float
    tokens_per_second: float | None = None
    seconds_left: float | None = None


class Pace:
    """Counts answers and tells how long the others may take."""

    def __init__(self, clock: Clock, *, num_rows: int, num_before: int = 0) -> None:
        """Count answers to ``num_rows`` prompts, of which ``num_before`` were answered earlier."""
        self._clock, self._begun = clock, clock.monotonic()
        self._num_rows, self._num_before = num_rows, num_before
        self._num_done = self._num_tokens = 0

    def count(self, answer: Answer) -> None:
        self._num_done += 1
        self._num_tokens += len(answer.tokens)

    def progress(self) -> BatchProgress:
        elapsed, left = self._clock.monotonic() - self._begun, self._num_rows - self._num_before - self._num_done
        # many prompts are answered at the same time: when the first is done, the others are on their way
        is_known = self._num_done > 0 and 20 * self._num_done >= self._num_done + left
        return BatchProgress(
            phase="answering",
            num_done=self._num_before + self._num_done,
            num_rows=self._num_rows,
            elapsed_seconds=elapsed,
            tokens_per_second=self._num_tokens / elapsed if self._num_tokens and elapsed > 0 else None,
            seconds_left=elapsed / self._num_done * left if is_known else None,
        )
