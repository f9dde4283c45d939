"""Room of one executor by the shares of tenants: whose trials may take whose slots.

Pure. Each tenant's first trials, up to its share of slots, rank rows and tokens, come before all others. What a tenant
has above its share is lent: it is taken back when the trial of one that has less finds no room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cohort.scheduling.admission import Capacity, Request

__all__ = ["arranged"]

# a tenant that is resident keeps its only slot until another is this many virtual seconds behind it: without that, more
# tenants than slots would take each other's at every step
_KEEPS_SECONDS = 1.0
_FIRST, _OWN, _LENT = 2, 1, 0


def arranged(
    requests: Sequence[Request],
    *,
    tenants: Mapping[int, str],
    residents: frozenset[int],
    capacity: Capacity,
    weights: Mapping[str, float],
    leads: Mapping[str, float],
) -> list[Request]:
    """Return ``requests`` with priorities among tenants; priorities of tasks order a tenant's own trials alone.

    Args:
        tenants: By trial.
        residents: Trials that have room now.
        weights: By tenant.
        leads: By tenant, virtual seconds that it is ahead of the least charged one.
    """
    by_tenant: dict[str, list[Request]] = {}
    for request in requests:
        by_tenant.setdefault(tenants[request.trial_id], []).append(request)
    total = sum(weights[tenant] for tenant in by_tenant)
    levels: dict[int, int] = {}
    firsts: list[Request] = []
    for tenant in sorted(by_tenant, key=lambda name: _standing(name, by_tenant[name], residents, leads)):
        own = sorted(
            by_tenant[tenant],
            key=lambda request: (-request.priority, request.trial_id not in residents, request.arrival),
        )
        share, held = weights[tenant] / total, list[Request]()
        for request in own:
            together = [*held, request]
            level = _OWN if _is_within(together, capacity, share=share) else _LENT
            if not held and _is_within([*firsts, request], capacity, share=1.0):
                # the least charged tenants have one trial each, however many tenants there are
                level = _FIRST
                firsts.append(request)
            levels[request.trial_id] = level
            if level != _LENT:
                held.append(request)
    return [replace(request, priority=levels[request.trial_id]) for request in requests]


def _standing(
    tenant: str, own: Sequence[Request], residents: frozenset[int], leads: Mapping[str, float]
) -> tuple[float, str]:
    is_inside = any(request.trial_id in residents for request in own)
    return leads[tenant] - (_KEEPS_SECONDS if is_inside else 0.0), tenant


def _is_within(requests: Sequence[Request], capacity: Capacity, *, share: float) -> bool:
    return (
        len(requests) <= share * capacity.num_slots
        and sum(request.r for request in requests) <= share * capacity.rank_rows
        and (len(requests) == 1 or sum(r.tokens_per_step for r in requests) <= share * capacity.tokens_per_step)
    )
