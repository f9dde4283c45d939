"""What each tenant was charged over its weight, in virtual seconds; the least charged is next.

A tenant's account is ahead of the virtual time by what it was charged and the others were not yet. The virtual time
follows the least charged tenant that wants anything. A tenant that comes back is lifted to it: a pause saves up no
claims, and time that an idle tenant lent is not asked back.

Source: start-time fair queueing, Goyal, Vin and Cheng, SIGCOMM 1996, section 2. Costs are not known in advance here:
an account is charged when a pass has run, which leaves start tags, and so the order, as they are there.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.core.errors import InputError, Problem

__all__ = ["DEFAULT_WEIGHT", "Costed", "ShareAccounts", "checked_weight", "divided_by_tokens"]

DEFAULT_WEIGHT = 1.0


@dataclass(frozen=True, kw_only=True)
class Costed:
    """Something of a tenant that takes ``seconds`` of a GPU: a row of a pass, a job."""

    tenant: str
    seconds: float


class ShareAccounts:
    """The accounts of one GPU, or of one pool of them."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """Begin without a charge.

        Args:
            weights: By tenant; those left out have weight 1.

        Raises:
            InputError: a weight is not a finite number above 0.
        """
        self._weights: dict[str, float] = {}
        for tenant, weight in (weights or {}).items():
            self.set_weight(tenant, weight)
        self._virtual = 0.0
        # of tenants that want something, and of those ahead of the virtual time: all others stand at it
        self._tags: dict[str, float] = {}
        self._wanting: frozenset[str] = frozenset()

    @property
    def virtual_seconds(self) -> float:
        return self._virtual

    def weight(self, tenant: str) -> float:
        return self._weights.get(tenant, DEFAULT_WEIGHT)

    def set_weight(self, tenant: str, weight: float) -> None:
        """Give a tenant another weight from now on; what it was charged before stays.

        Raises:
            InputError: the weight is not a finite number above 0.
        """
        self._weights[tenant] = checked_weight(tenant, weight)

    def tag(self, tenant: str) -> float:
        """Return where a tenant stands, in virtual seconds: the least is next."""
        if tenant in self._wanting:
            # may be behind the virtual time: what it was charged in advance and got back is still due to it
            return self._tags[tenant]
        return max(self._tags.get(tenant, 0.0), self._virtual)

    def lead(self, tenant: str) -> float:
        """Return by how many virtual seconds a tenant is ahead of the virtual time."""
        return self.tag(tenant) - self._virtual

    def advance(self, wanting: Iterable[str]) -> None:
        """Take in who wants something now, and move the virtual time to the least charged of them.

        A tenant that wanted nothing before is lifted to the virtual time. Where no tenant wants anything, nothing is
        taken from any, and all accounts are even again.
        """
        tags = {tenant: self.tag(tenant) for tenant in wanting}
        if tags:
            # those that just came stand no lower than the virtual time, so the first of them do not hold it back
            self._virtual = max(self._virtual, min(tags.values()))
        else:
            self._virtual = max(self._tags.values(), default=self._virtual)
        ahead = {tenant: tag for tenant, tag in self._tags.items() if tag > self._virtual}
        self._tags, self._wanting = ahead | tags, frozenset(tags)

    def charge(self, seconds_by_tenant: Mapping[str, float], *, most_lead: float = math.inf) -> None:
        """Charge GPU seconds; negative ones give back what was charged in advance.

        Args:
            most_lead: In virtual seconds; what would put a tenant further ahead is not charged.
        """
        for tenant, seconds in seconds_by_tenant.items():
            before = self.tag(tenant)
            limit = max(before, self._virtual + most_lead)
            self._tags[tenant] = min(before + seconds / self.weight(tenant), limit)

    def order(self, items: Sequence[Costed]) -> list[int]:
        """Return the numbers of ``items`` in fair order, those of a tenant in the order in which they are given.

        Nothing is charged: accounts are carried forward as if each item ran when it is reached. Of tenants that stand
        alike the one whose item was given first is next.
        """
        own: dict[str, deque[int]] = {}
        for number, item in enumerate(items):
            own.setdefault(item.tenant, deque()).append(number)
        heads = [(self.tag(tenant), numbers[0], tenant) for tenant, numbers in own.items()]
        heapq.heapify(heads)
        ordered = []
        while heads:
            tag, number, tenant = heapq.heappop(heads)
            ordered.append(number)
            own[tenant].popleft()
            if own[tenant]:
                following = tag + items[number].seconds / self.weight(tenant)
                heapq.heappush(heads, (following, own[tenant][0], tenant))
        return ordered

    def to_record(self) -> dict[str, Any]:
        """Return the accounts as values that JSON keeps exactly; weights are the caller's to keep."""
        return {
            "virtual_seconds": self._virtual,
            "tags": dict(sorted(self._tags.items())),
            "wanting": sorted(self._wanting),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], *, weights: Mapping[str, float] | None = None) -> ShareAccounts:
        accounts = cls(weights)
        accounts._virtual = float(record["virtual_seconds"])
        accounts._tags = {str(tenant): float(tag) for tenant, tag in record["tags"].items()}
        accounts._wanting = frozenset(map(str, record["wanting"]))
        return accounts


def checked_weight(tenant: str, weight: float) -> float:
    """Return the weight.

    Raises:
        InputError: it is not a finite number above 0.
    """
    if not (math.isfinite(weight) and weight > 0):
        raise InputError(
            Problem(
                where=f"weight of tenant {tenant!r}",
                found=str(weight),
                allowed="a finite number above 0",
                hint="Give it a weight such as 1; to stop a tenant, revoke its keys instead.",
            )
        )
    return float(weight)


def divided_by_tokens(seconds: float, tokens: Mapping[str, int]) -> dict[str, float]:
    """Divide a pass among the tenants in it by their tokens, so that all share what packing saves.

    Without any tokens, as in a launch of optimizer steps, each has an equal part.
    """
    total = sum(tokens.values())
    if not total:
        return {tenant: seconds / len(tokens) for tenant in tokens}
    return {tenant: seconds * own / total for tenant, own in tokens.items()}
