"""Whose pass is next on one resident base: sweeps, client-driven training and serving by the shares of their tenants.

The owner of the base asks before each pass with everything that could run, runs the answer, and says afterwards
what that took. There is no clock here, and nothing happens between two calls.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cohort.scheduling.shares.accounts import Costed, ShareAccounts, divided_by_tokens
from cohort.scheduling.shares.records import ReadyWork, ShareSettings, Turn, WorkKind

__all__ = ["TurnTaker"]


class TurnTaker:
    """Gives turns on one base."""

    def __init__(self, weights: Mapping[str, float] | None = None, *, settings: ShareSettings | None = None) -> None:
        """Begin without a charge.

        Args:
            weights: By tenant; those left out have weight 1.

        Raises:
            InputError: a weight is not a finite number above 0.
        """
        self._settings = settings or ShareSettings()
        self._accounts = ShareAccounts(weights)
        # of each tenant that wants something now, by name of the work: its works have equal parts of its turns
        self._works: dict[str, ShareAccounts] = {}
        # what other passes took since serving had one
        self._seconds_without_serving = 0.0

    @property
    def accounts(self) -> ShareAccounts:
        return self._accounts

    def next_turn(self, ready: Sequence[ReadyWork], *, also_wanting: Collection[str] = ()) -> Turn | None:
        """Return what runs next: the work of the least charged tenant, or serving that has waited too long.

        Works of one tenant have equal parts of its time, by their names.

        Args:
            ready: All passes that could run now; of those that stand alike the first is taken.
            also_wanting: Tenants whose next pass can only follow one of these, or is asked for in a moment. They keep
                what they are behind by.

        Returns:
            None when nothing is ready.
        """
        self._look_at(ready, also_wanting)
        if not ready:
            return None
        work, longest = self._next_of_least_charged(ready), self._settings.max_pass_seconds
        requests = [other for other in ready if other.kind is WorkKind.SERVING]
        if not requests:
            return Turn(work=work, tenants=self._riders(work, ready))
        if work.kind is WorkKind.SERVING:
            return Turn(work=work, tenants=self._riders(work, ready), max_seconds=longest)
        left = longest - self._seconds_without_serving
        # a pass squeezed into what is left would cost almost as much as a whole one
        if left <= 0 or min(work.expected_seconds, longest) > left:
            urgent = self._next_of_least_charged(requests)
            return Turn(
                work=urgent,
                tenants=self._by_tag(urgent.tokens),
                max_seconds=longest * self._settings.floor_share,
                before_its_turn=True,
            )
        return Turn(work=work, tenants=self._riders(work, ready), max_seconds=left)

    def charge(self, turn: Turn, *, seconds: float, tokens: Mapping[str, int]) -> dict[str, float]:
        """Charge a pass that ran to the tenants that were in it, and return their GPU seconds.

        Args:
            tokens: By tenant, those that were computed; at least one tenant.
        """
        if turn.work.kind is WorkKind.SERVING:
            self._seconds_without_serving = 0.0
        else:
            self._seconds_without_serving += seconds
        parts = divided_by_tokens(seconds, tokens)
        for tenant, own in parts.items():
            if tenant in self._works:
                self._works[tenant].charge({turn.work.name: own})
        if turn.before_its_turn:
            # the bound on latency holds for everyone, so no tenant goes into debt without end for it: with that debt a
            # tenant's training would starve for as long as its requests came
            self._accounts.charge(parts, most_lead=self._settings.ride_seconds)
        else:
            self._accounts.charge(parts)
        return parts

    def row_order(self, rows: Sequence[tuple[str, int]], *, seconds_per_token: float) -> list[int]:
        """Return the order in which rows (tenant, tokens) fill a pass that has no room for all of them."""
        return self._accounts.order(
            [Costed(tenant=tenant, seconds=tokens * seconds_per_token) for tenant, tokens in rows]
        )

    def to_record(self) -> dict[str, Any]:
        """Return what tenants were charged, as values that JSON keeps exactly; weights are the caller's to keep."""
        return self._accounts.to_record() | {"seconds_without_serving": self._seconds_without_serving}

    @classmethod
    def from_record(
        cls,
        record: Mapping[str, Any],
        *,
        weights: Mapping[str, float] | None = None,
        settings: ShareSettings | None = None,
    ) -> TurnTaker:
        taker = cls(settings=settings)
        taker._accounts = ShareAccounts.from_record(record, weights=weights)
        taker._seconds_without_serving = float(record["seconds_without_serving"])
        return taker

    def _look_at(self, ready: Sequence[ReadyWork], also_wanting: Collection[str]) -> None:
        """Move the virtual time to those that want something now; a tenant that wants nothing saves up nothing."""
        names: dict[str, list[str]] = {}
        for work in ready:
            for tenant in work.tokens:
                names.setdefault(tenant, []).append(work.name)
        wanting = names.keys() | set(also_wanting)
        self._accounts.advance(wanting)
        self._works = {tenant: self._works.get(tenant) or ShareAccounts() for tenant in wanting}
        for tenant, own in names.items():
            self._works[tenant].advance(own)

    def _next_of_least_charged(self, ready: Sequence[ReadyWork]) -> ReadyWork:
        """Return the next work of the least charged tenant; of those that stand alike the first."""
        tenants = dict.fromkeys(tenant for work in ready for tenant in work.tokens)
        least = min(tenants, key=self._accounts.tag)
        return min((work for work in ready if least in work.tokens), key=lambda work: self._works[least].tag(work.name))

    def _least_tag(self, work: ReadyWork) -> float:
        return min(map(self._accounts.tag, work.tokens))

    def _by_tag(self, tenants: Mapping[str, int]) -> tuple[str, ...]:
        return tuple(sorted(tenants, key=lambda tenant: (self._accounts.tag(tenant), tenant)))

    def _riders(self, work: ReadyWork, ready: Sequence[ReadyWork]) -> tuple[str, ...]:
        """Return who may ride in a pass: all, or with others waiting for another pass only who had not much more."""
        ordered = self._by_tag(work.tokens)
        if all(other is work for other in ready):
            return ordered
        most = self._least_tag(work) + self._settings.ride_seconds
        return tuple(tenant for tenant in ordered if self._accounts.tag(tenant) <= most)
