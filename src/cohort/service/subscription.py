"""What one HTTP request hears of its sequences: an engine's thread adds, the request's event loop takes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from cohort.serving.step_output import StepOutput

__all__ = ["Listener", "Subscription", "wake_all"]


class Listener(Protocol):
    """What an engine's thread tells of a request's sequences.

    Attributes:
        numbers: Its sequences that the engine has and that are not finished.
        is_cancelled: Whether the client has its answer or has left.
    """

    numbers: set[int]
    is_cancelled: bool

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Of the request."""
        ...

    def put(self, place: int, output: StepOutput) -> bool:
        """Add an output in the engine's thread; return whether the request waits and has to be woken."""
        ...

    def wake(self) -> None:
        """Let the request go on, in its event loop."""
        ...


@dataclass(eq=False)
class Subscription:
    """Outputs of one request, with their place in it.

    A request that is busy, or gathers tokens before it writes them, costs its event loop nothing while more come: only
    one that waits is woken.

    Attributes:
        loop: Of the request.
        numbers: Its sequences that the engine has and that are not finished.
        is_cancelled: Whether the client has its answer or has left.
    """

    loop: asyncio.AbstractEventLoop
    numbers: set[int] = field(default_factory=set)
    is_cancelled: bool = False
    # one thread appends and the other takes from the left: both are atomic
    _arrived: deque[tuple[int, StepOutput]] = field(default_factory=deque)
    _waiter: asyncio.Future[None] | None = None

    def put(self, place: int, output: StepOutput) -> bool:
        """Add an output in the engine's thread; return whether the request waits and has to be woken."""
        self._arrived.append((place, output))
        return self._waiter is not None

    async def arrived(self) -> list[tuple[int, StepOutput]]:
        """Return what has come since the last call, in its order; wait while nothing has."""
        while not self._arrived:
            self._waiter = self.loop.create_future()
            try:
                # it may have come before the engine could see that this waits
                if not self._arrived:
                    await self._waiter
            finally:
                self._waiter = None
        taken = []
        while self._arrived:
            taken.append(self._arrived.popleft())
        return taken

    def wake(self) -> None:
        """Let the request go on, in its event loop."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def wake_all(subscriptions: Iterable[Listener]) -> None:
    """Wake requests of one event loop, in it."""
    for subscription in subscriptions:
        subscription.wake()
