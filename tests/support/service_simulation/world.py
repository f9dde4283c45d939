"""A world in which everything that a service meets is drawn from one seed: time, order, faults.

One seed is one history: its log is the same, byte for byte, on every machine. Nothing here waits, and no thread runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random

from cohort.store.database import Moment
from cohort.store.errors import StorageFull, StoreUnavailable

# a Saturday, half an hour before midnight in UTC: quotas of a day change within each history
_BEGIN = datetime(2026, 11, 28, 23, 30, tzinfo=UTC).timestamp()


class ProcessDied(BaseException):
    """The process that was at work is killed here."""


@dataclass(frozen=True, kw_only=True)
class FaultRates:
    """How often something goes wrong, as chances by moment of a transaction."""

    lost_before: float = 0.015
    lost_after: float = 0.02
    full: float = 0.01
    killed_before: float = 0.01
    killed_after: float = 0.01
    meanwhile: float = 0.05
    outage_every_seconds: float = 80.0
    jump_every_seconds: float = 60.0


class World:
    """Time, chance and what was said.

    Attributes:
        now: Seconds since the history began, which no clock shows exactly.
        chance: The only source of chance.
        lines: What happened, in order.
        is_calm: Nothing goes wrong from here on.
    """

    def __init__(self, seed: int, *, rates: FaultRates | None = None) -> None:
        self.seed, self.chance, self.rates = seed, Random(seed), rates or FaultRates()
        self.now, self.offset = 0.0, 0.0
        self.away_until = self.full_until = -1.0
        self.lines: list[str] = []
        self.is_calm = False
        self.on_commit: Callable[[], None] = lambda: None
        # what other processes do between two transactions of one
        self.meanwhile: list[Callable[[], None]] = []
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self._num_planned = 0
        self._is_looking = False
        self.after(self.rates.outage_every_seconds, self._outage)
        self.after(self.rates.jump_every_seconds, self._jump)

    def after(self, mean_seconds: float, action: Callable[[], None]) -> None:
        """Let something happen around ``mean_seconds`` from now."""
        at = self.now + mean_seconds * self.chance.uniform(0.5, 1.5)
        heapq.heappush(self._coming, (at, self._num_planned, action))
        self._num_planned += 1

    def run(self, *, until: float) -> None:
        while self._coming and self._coming[0][0] <= until:
            self.now, _, action = heapq.heappop(self._coming)
            action()
        self.now = until

    def say(self, line: str) -> None:
        self.lines.append(f"{self.now:.3f} {line}")

    def calm(self) -> None:
        """End all faults; the database is there, and clocks run."""
        self.is_calm, self.away_until, self.full_until = True, -1.0, -1.0
        self.say("calm")

    def fault(self, moment: Moment) -> None:
        """Be called at the moments of each transaction of the store."""
        if self._is_looking:
            return
        if moment is Moment.COMMITTED:
            self._is_looking = True
            try:
                self.on_commit()
            finally:
                self._is_looking = False
        if self.is_calm:
            return
        if moment is Moment.BEGIN and self.meanwhile and self.chance.random() < self.rates.meanwhile:
            others, self.meanwhile = self.meanwhile, []
            try:
                self.chance.choice(others)()
            finally:
                self.meanwhile = others
        if self.now < self.away_until:
            raise StoreUnavailable("the simulated database is away", may_be_done=moment is Moment.COMMITTED)
        if self.now < self.full_until and moment is Moment.COMMIT:
            raise StorageFull("the simulated disk is full")
        draw = self.chance.random()
        for rate, error in self._faults_of(moment):
            draw -= rate
            if draw < 0:
                self.say(f"fault at {moment}: {type(error).__name__}")
                raise error

    def _faults_of(self, moment: Moment) -> list[tuple[float, BaseException]]:
        rates = self.rates
        if moment is Moment.COMMIT:
            return [
                (rates.full, StorageFull("the simulated disk is full")),
                (rates.killed_before, ProcessDied()),
                (rates.lost_before, StoreUnavailable("the connection was lost")),
            ]
        if moment is Moment.COMMITTED:
            return [
                (rates.killed_after, ProcessDied()),
                (rates.lost_after, StoreUnavailable("the connection was lost", may_be_done=True)),
            ]
        return [(rates.lost_before, StoreUnavailable("the connection was lost"))]

    def _outage(self) -> None:
        if not self.is_calm:
            until = self.now + self.chance.choice((1.0, 10.0, 45.0))
            if self.chance.random() < 0.5:
                self.away_until = until
                self.say(f"the database is away until {until:.3f}")
            else:
                self.full_until = until
                self.say(f"the disk is full until {until:.3f}")
            self.after(self.rates.outage_every_seconds, self._outage)

    def _jump(self) -> None:
        if not self.is_calm:
            by = self.chance.choice((-300.0, -5.0, 5.0, 40.0, 3600.0))
            self.offset += by
            self.say(f"the clock jumps by {by:+.0f} s")
            self.after(self.rates.jump_every_seconds, self._jump)


class WorldClock:
    """The clock of a world, for code that takes one: its date jumps, its monotonic time does not."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.now

    def now(self) -> datetime:
        return datetime.fromtimestamp(_BEGIN + self._world.now + self._world.offset, tz=UTC)

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"nothing sleeps in a simulated world, but something wanted to for {seconds} s")
