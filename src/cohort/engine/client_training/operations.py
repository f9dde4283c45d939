"""The operations of one client's model, in the order of their numbers, whatever order they arrive in."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.training.requests.request_executor import AdamParameters, PassRequest

__all__ = ["Operation", "OperationLog", "Work"]

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

    def add(self, operation: Operation) -> Operation:
        """Return the operation of this number: this one, or the same one that came before.

        Raises:
            InputError: its number was used with another body, or so long ago that its answer is gone.
        """
        known = self._known.get(operation.number)
        if known is None and operation.number < self._next:
            raise self._used(operation.number, "an earlier call, whose answer is no longer kept")
        if known is not None:
            if known.fingerprint != operation.fingerprint:
                raise self._used(operation.number, "another body")
            return known
        self._known[operation.number] = self._waiting[operation.number] = operation
        return operation

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
        after a later one is taken for lost, so that a client that failed in between is not waited for forever.
        """
        if (found := self._waiting.get(self._next)) is not None or not self._waiting:
            return found
        first = min(self._waiting)
        return self._waiting[first] if now - self._waiting[first].arrived >= gap_seconds else None

    def take(self, operation: Operation) -> None:
        """Take the head out: it runs now."""
        del self._waiting[operation.number]
        self._next = operation.number + 1
        for number in [number for number in self._known if number < self._next - self._keeps]:
            del self._known[number]

    @property
    def waiting(self) -> tuple[Operation, ...]:
        return tuple(self._waiting.values())
