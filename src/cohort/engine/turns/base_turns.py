"""One thread at a time computes with a base model that several threads share; shares decide which is next.

A thread asks for a turn before each pass and says what waits to ride in it. While one computes, others queue. A thread
that comes back at once, as sweeps do between two steps, is waited for a moment where its tenants are the least charged:
otherwise two threads would simply alternate, whatever their weights are. Its tenants keep their place in the order for
longer than that, and while another thread computes between two of its passes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from cohort.scheduling.shares.records import ReadyWork, Turn, WorkKind
from cohort.scheduling.shares.turns import TurnTaker

__all__ = ["BaseTurns", "HeldTurn"]

# between two steps a sweep commits its record and decides, which takes 1 to 5 ms
GRACE_SECONDS = 0.01
# So long after a pass whose thread comes back its tenants still want the base. A thread that stays away longer
# comes back as one that had nothing to do.
KEPT_SECONDS = 1.0
# before anything was measured
_SECONDS_PER_TOKEN = 0.0


@dataclass(eq=False, kw_only=True)
class HeldTurn:
    """The turn of a thread that computes.

    Attributes:
        turn: What was decided.
        tokens: By tenant, what is computed; who computes less than was ready says so here.
        follows: What the thread will ask for next, where it comes back at once; None where it may not.
        kept_seconds: For how long the tenants of ``follows`` keep their place, if the thread does not rest before.
    """

    turn: Turn
    tokens: Mapping[str, int]
    follows: ReadyWork | None = None
    kept_seconds: float = KEPT_SECONDS
    began: float = 0.0
    pass_began: float = 0.0


@dataclass(eq=False, kw_only=True)
class _Claim:
    work: ReadyWork
    thread: int = field(default_factory=threading.get_ident)
    arrived: float
    also_wanting: frozenset[str] = frozenset()
    held: HeldTurn | None = None


class BaseTurns:
    """Gives turns to threads.

    Attributes:
        num_passes: Turns that were given, by kind of work.
    """

    def __init__(
        self,
        taker: TurnTaker | None = None,
        *,
        max_pass_seconds: float = 0.25,
        grace_seconds: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Give turns as ``taker`` decides.

        Args:
            max_pass_seconds: That of ``taker``: requests wait no longer for passes of others, where these can be cut.
            grace_seconds: How long the base stays idle for a thread that comes back and is next.
            clock: Seconds.
        """
        self._taker = taker or TurnTaker()
        self._max_pass_seconds, self._grace_seconds, self._clock = max_pass_seconds, grace_seconds, clock
        self._changed = threading.Condition()
        self._claims: list[_Claim] = []
        # by name: work of threads that come back, and until when they are waited for
        self._returning: dict[str, tuple[ReadyWork, float]] = {}
        # by name: whose they are, and until when these keep their place
        self._kept: dict[str, tuple[frozenset[str], float]] = {}
        self._holder: _Claim | None = None
        # gave way to requests between two of its passes
        self._suspended: _Claim | None = None
        self._served_at = -float("inf")
        self._seconds_per_token: dict[WorkKind, float] = {}
        self._usage: dict[tuple[str, WorkKind], float] = {}
        self.num_passes: dict[WorkKind, int] = dict.fromkeys(WorkKind, 0)

    @property
    def max_pass_seconds(self) -> float:
        return self._max_pass_seconds

    @property
    def is_busy(self) -> bool:
        """Whether a thread that asks now may have to wait; for any thread."""
        with self._changed:
            return self._holder is not None or bool(self._claims or self._returning)

    def seconds_per_token(self, kind: WorkKind) -> float:
        """Return what a token of such passes took lately; 0 before the first."""
        return self._seconds_per_token.get(kind, _SECONDS_PER_TOKEN)

    def weigh(self, tenant: str, weight: float) -> None:
        """Give a tenant a weight from now on.

        Raises:
            InputError: the weight is not a finite number above 0.
        """
        with self._changed:
            self._taker.accounts.set_weight(tenant, weight)

    def weight(self, tenant: str) -> float:
        return self._taker.accounts.weight(tenant)

    def usage(self) -> dict[tuple[str, WorkKind], float]:
        """Return the seconds that each tenant was charged for each kind of work; for any thread."""
        with self._changed:
            return dict(self._usage)

    def leads(self, tenants: frozenset[str]) -> dict[str, float]:
        """Return by how much each tenant is ahead of the least charged one, in seconds over weight."""
        with self._changed:
            return {tenant: self._taker.accounts.lead(tenant) for tenant in tenants}

    def row_order(self, rows: list[tuple[str, int]], *, kind: WorkKind) -> list[int]:
        """Return the order in which rows (tenant, tokens) fill a pass that has no room for all."""
        with self._changed:
            # where nothing was measured any price gives the same order
            price = self.seconds_per_token(kind) or 1e-6
            return self._taker.row_order(rows, seconds_per_token=price)

    @contextmanager
    def turn(
        self,
        kind: WorkKind,
        tokens: Mapping[str, int],
        *,
        name: str | None = None,
        also_wanting: frozenset[str] = frozenset(),
    ) -> Iterator[HeldTurn]:
        """Hold the base within. A turn within a turn of the same thread is a part of it.

        Args:
            tokens: By tenant, what waits to ride in this pass; not empty.
            name: What distinguishes the asker from others of its kind.
            also_wanting: Tenants whose next pass can only follow this one: they keep what they are behind by, and this
                pass is not chosen for them.
        """
        if (outer := self._held_here()) is not None:
            yield outer
            return
        work = self.ready(kind, tokens, name=name)
        with self._changed:
            claim = _Claim(work=work, arrived=self._clock(), also_wanting=also_wanting)
            self._returning.pop(work.name, None)
            self._kept.pop(work.name, None)
            self._claims.append(claim)
            self._give()
            while claim.held is None:
                self._changed.wait(self._wait_seconds())
                self._give()
        try:
            yield claim.held
        finally:
            self._end(claim, claim.held)

    def ready(self, kind: WorkKind, tokens: Mapping[str, int], *, name: str | None = None) -> ReadyWork:
        """Return a pass that could run, with the time that it is expected to take."""
        expected = sum(tokens.values()) * self.seconds_per_token(kind)
        return ReadyWork(name=name or kind.value, kind=kind, tokens=tokens, expected_seconds=expected)

    def rest(self, kind: WorkKind, *, name: str | None = None) -> None:
        """Say that a thread that was to come back has nothing left to compute; its tenants give up their place."""
        with self._changed:
            for known in (self._returning, self._kept):
                known.pop(name or kind.value, None)
            self._give()
            self._changed.notify_all()

    def give_way(self) -> None:
        """Between two passes of one turn: let requests that have waited long enough compute one, then go on.

        A thread that holds no turn may call this, and nothing happens.
        """
        with self._changed:
            claim = self._holder
            if claim is None or claim.held is None or claim.thread != threading.get_ident():
                return
            held, now = claim.held, self._clock()
            last, held.pass_began = now - held.pass_began, now
            requests = [other for other in self._claims if other.work.kind is WorkKind.SERVING]
            if not requests:
                return
            waiting_since = max(self._served_at, min(other.arrived for other in requests))
            if now - waiting_since + last <= self._max_pass_seconds:
                return
            self._charge(claim, held, now=now)
            self._suspended, self._holder = claim, None
            self._choose([other.work for other in requests])
            self._changed.wait_for(lambda: self._holder is claim)
            held.began = held.pass_began = self._clock()

    def _held_here(self) -> HeldTurn | None:
        with self._changed:
            holder = self._holder
            return holder.held if holder is not None and holder.thread == threading.get_ident() else None

    def _give(self) -> None:
        """Give the base to the next claim, if it is free and its next is there."""
        if self._holder is not None or self._suspended is not None:
            return
        now = self._clock()
        self._returning = {name: entry for name, entry in self._returning.items() if entry[1] > now}
        if self._claims:
            self._choose([*(claim.work for claim in self._claims), *(work for work, _ in self._returning.values())])

    def _choose(self, ready: list[ReadyWork]) -> None:
        turn = self._taker.next_turn(ready, also_wanting=self._wanting())
        if turn is None:
            return
        claim = next((claim for claim in self._claims if claim.work is turn.work), None)
        if claim is None:
            # its thread is on the way; who waits looks again when its time is over
            return
        self._claims.remove(claim)
        now = self._clock()
        claim.held = HeldTurn(turn=turn, tokens=dict(claim.work.tokens), began=now, pass_began=now)
        self._holder = claim
        self._changed.notify_all()

    def _wanting(self) -> frozenset[str]:
        """Return the tenants of all that waits, comes back or was interrupted, whether it may compute next or not."""
        now = self._clock()
        self._kept = {name: entry for name, entry in self._kept.items() if entry[1] > now}
        waiting = [*self._claims, *([] if self._suspended is None else [self._suspended])]
        return frozenset(
            tenant
            for tenants in (
                *(claim.work.tokens for claim in waiting),
                *(claim.also_wanting for claim in waiting),
                *(names for names, _ in self._kept.values()),
            )
            for tenant in tenants
        )

    def _wait_seconds(self) -> float | None:
        """Return after how long the one that is waited for is given up; None while another computes."""
        if self._holder is not None or self._suspended is not None or not self._returning:
            return None
        return max(0.0, min(until for _, until in self._returning.values()) - self._clock())

    def _end(self, claim: _Claim, held: HeldTurn) -> None:
        with self._changed:
            now = self._clock()
            self._charge(claim, held, now=now)
            self.num_passes[claim.work.kind] += 1
            if claim.work.kind is WorkKind.SERVING:
                self._served_at = now
            if held.follows is not None:
                following = replace(held.follows, name=claim.work.name)
                self._returning[claim.work.name] = (following, now + self._grace_seconds)
                self._kept[claim.work.name] = (claim.also_wanting.union(following.tokens), now + held.kept_seconds)
            self._holder, self._suspended = self._suspended, None
            if self._holder is None:
                self._give()
            self._changed.notify_all()

    def _charge(self, claim: _Claim, held: HeldTurn, *, now: float) -> None:
        seconds, tokens = max(0.0, now - held.began), held.tokens or dict.fromkeys(claim.work.tokens, 0)
        kind = claim.work.kind
        for tenant, own in self._taker.charge(held.turn, seconds=seconds, tokens=tokens).items():
            self._usage[tenant, kind] = self._usage.get((tenant, kind), 0.0) + own
        if total := sum(tokens.values()):
            found = seconds / total
            before = self._seconds_per_token.get(kind, found)
            # of the last ten passes or so
            self._seconds_per_token[kind] = 0.9 * before + 0.1 * found
