"""Which residents of an executor take the next step, and when: all at once, or by the shares of their tenants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from cohort.scheduling.admission import Capacity, Request

__all__ = ["EveryoneSteps", "ReadyStep", "StepTurns"]


@dataclass(frozen=True, kw_only=True)
class ReadyStep:
    """A resident that could take a step; ``tokens`` are those of a mean step."""

    key: int
    tenant: str
    tokens: int


class StepTurns(Protocol):
    """Whose turn it is."""

    @property
    def is_shared(self) -> bool:
        """Whether others compute with the base model between the steps."""
        ...

    def arrange(
        self, requests: Sequence[Request], *, tenants: Mapping[int, str], residents: frozenset[int], capacity: Capacity
    ) -> list[Request]:
        """Return requests for room with the priorities that their tenants' shares give them.

        Args:
            tenants: By the number of each request's trial.
            residents: Those of the requests that are resident.
        """
        ...

    @contextmanager
    def step(self, ready: Sequence[ReadyStep]) -> Iterator[list[int]]:
        """Hold the base within, and yield the numbers of those that take a step."""
        ...

    @contextmanager
    def other(self, tenant: str) -> Iterator[None]:
        """Hold the base within, for what is no step: evaluations, answers, loading."""
        ...

    def rest(self) -> None:
        """Take in that no task is left to step."""
        ...


class EveryoneSteps:
    """An executor whose base model is its own: all residents step together."""

    is_shared = False

    def arrange(
        self, requests: Sequence[Request], *, tenants: Mapping[int, str], residents: frozenset[int], capacity: Capacity
    ) -> list[Request]:
        del tenants, residents, capacity
        return list(requests)

    @contextmanager
    def step(self, ready: Sequence[ReadyStep]) -> Iterator[list[int]]:
        yield sorted(trial.key for trial in ready)

    @contextmanager
    def other(self, tenant: str) -> Iterator[None]:
        del tenant
        yield

    def rest(self) -> None:
        """Do nothing: no other thread waits for this executor."""
