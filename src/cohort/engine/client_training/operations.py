"""The operations of one client's model, in the order of their numbers, whatever order they arrive in."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.training.client_training.request_executor import AdamParameters, PassRequest

__all__ = ["Operation", "OperationLog", "Work"]

_MOST_SKIPPED = 1024

Work = PassRequest | AdamParameters | Callable[[], Any]
"""What an operation does: a pass, an optimizer step, or anything that reads or changes the model between them."""


@dataclass(kw_only=True, eq=False)
class Operation:
    """One call.

    Attributes:
        number: The client's, from 1 on without gaps.
        fingerprint: Of its whole body: a repeat has the same one.
        arrived: When, in seconds of a clock that only goes forward.
        answer: What it gives, once it has run.
    """

    model_id: str
    number: int
    fingerprint: bytes
    work: Work
    arrived: float
    answer: Future[Any] = field(default_factory=Future)


class OperationLog:
    """What a model has been asked for. A client repeats calls whose answers it has not seen."""

    def __init__(self, model_id: str, *, first: int = 1, keeps: int = 64) -> None:
        """Begin with number ``first``; the last ``keeps`` operations that have run are remembered for repeats."""
        self._model_id, self._next, self._keeps = model_id, first, keeps
        self._waiting: dict[int, Operation] = {}
        self._known: dict[int, Operation] = {}
        # numbers that need not come, from the first to the last of each range
        self._skipped: list[tuple[int, int]] = []

    def add(self, operation: Operation) -> Operation:
        """Return the operation of this number: this one, or the same one that came before.

        Raises:
            InputError: its number was used with another body, or so long ago that its answer is gone.
        """
        known = self._known.get(operation.number)
        if known is None:
            self.check(operation.number)
        if known is not None:
            if known.fingerprint != operation.fingerprint:
                raise self._used(operation.number, "another body")
            return known
        self._known[operation.number] = self._waiting[operation.number] = operation
        return operation

    def check(self, number: int) -> None:
        """Check the number of a call that is not remembered.

        Raises:
            InputError: a later call has run.
        """
        if number < self._next and number not in self._known:
            raise self._used(number, "an earlier call, whose answer is no longer kept")

    def _used(self, number: int, by: str) -> InputError:
        return InputError(
            Problem(
                where="seq_id",
                found=f"{number}, which was used with {by}",
                allowed=f"{self._next} or more for a new call of {self._model_id}",
                hint="Number the calls of a model 1, 2, 3 and so on, each once.",
            )
        )

    def head(self, *, now: float, gap_seconds: float) -> Operation | None:
        """Return the next operation that may run.

        Calls that are sent at the same time arrive in any order. A number that does not come within ``gap_seconds``
        after a later one is taken for lost, so that a client that failed in between is not waited for forever. One
        that was skipped is not waited for at all.
        """
        if (found := self._waiting.get(self._next)) is not None or not self._waiting:
            return found
        first = self._waiting[min(self._waiting)]
        is_ready = self.expects(first.number) == first.number or now - first.arrived >= gap_seconds
        return first if is_ready else None

    def skip(self, first: int, last: int) -> None:
        """Do not wait for the calls numbered ``first`` to ``last``: they were refused. One that comes nevertheless,
        before a later one has run, is as welcome as any other.
        """
        if last >= self._next and len(self._skipped) < _MOST_SKIPPED:
            self._skipped.append((first, last))

    def expects(self, number: int) -> int:
        """Return the first number below ``number`` that is to come and neither waits nor was skipped, or ``number``."""
        expected = self._next
        for first, last in sorted(self._skipped):
            if first <= expected <= last:
                expected = last + 1
        return min(expected, number)

    @property
    def last_taken(self) -> int:
        """The number of the last call that was taken."""
        return self._next - 1

    def take(self, operation: Operation) -> None:
        """Take the head out: it runs now."""
        del self._waiting[operation.number]
        self._next = operation.number + 1
        self._skipped = [(first, last) for first, last in self._skipped if last >= self._next]
        for number in [number for number in self._known if number < self._next - self._keeps]:
            del self._known[number]

    @property
    def waiting(self) -> tuple[Operation, ...]:
        return tuple(self._waiting.values())
