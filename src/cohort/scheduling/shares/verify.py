"""The independent checker of turns: it reads what ran and who waited, and knows no virtual time.

The bound on shares is that of start-time fair queueing (Goyal et al. 1996, theorem 1): of two tenants that both wait
all along, neither is ahead of the other by more than one pass of each over their weights. Riding in others' passes
adds what a rider may be ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from cohort.scheduling.shares.records import ShareSettings, WorkKind

__all__ = ["PassRun", "Wanted", "find_turn_faults"]

_SLACK_SECONDS = 1e-6


@dataclass(frozen=True, kw_only=True)
class PassRun:
    """A pass that ran.

    Attributes:
        seconds_by_tenant: How its time was divided.
        requests_waited: Whether serving could have run instead.
        before_its_turn: Whether it was serving that had waited too long.
    """

    start_seconds: float
    end_seconds: float
    kind: WorkKind
    seconds_by_tenant: Mapping[str, float]
    requests_waited: bool
    before_its_turn: bool = False


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A tenant had something to run all the time from ``since_seconds`` to ``until_seconds``."""

    tenant: str
    since_seconds: float
    until_seconds: float


def find_turn_faults(
    passes: Sequence[PassRun],
    wanted: Sequence[Wanted],
    *,
    weights: Mapping[str, float],
    settings: ShareSettings | None = None,
) -> tuple[str, ...]:
    """Return everything that is wrong with a history, in words; empty when turns were given as promised.

    Args:
        passes: In the order in which they ran.
        weights: Of every tenant.
    """
    settings = settings or ShareSettings()
    faults = _division_faults(passes) + _idle_faults(passes, wanted)
    faults += _share_faults(passes, wanted, weights=weights, settings=settings)
    return tuple(faults + _latency_faults(passes, settings=settings))


def _division_faults(passes: Sequence[PassRun]) -> list[str]:
    faults = []
    for run in passes:
        charged, took = sum(run.seconds_by_tenant.values()), run.end_seconds - run.start_seconds
        if abs(charged - took) > _SLACK_SECONDS:
            faults.append(f"the pass at {run.start_seconds} took {took} s, but {charged} s were charged")
    return faults


def _idle_faults(passes: Sequence[PassRun], wanted: Sequence[Wanted]) -> list[str]:
    """A base that stands still while somebody waits, and passes that overlap."""
    faults = []
    for before, after in pairwise(passes):
        if after.start_seconds < before.end_seconds - _SLACK_SECONDS:
            faults.append(f"the pass at {after.start_seconds} begins before the one before it ends")
        for wish in wanted:
            start = max(wish.since_seconds, before.end_seconds)
            if min(wish.until_seconds, after.start_seconds) - start > _SLACK_SECONDS:
                faults.append(f"nothing runs from {start} on, while {wish.tenant} waits")
    return faults


def _share_faults(
    passes: Sequence[PassRun], wanted: Sequence[Wanted], *, weights: Mapping[str, float], settings: ShareSettings
) -> list[str]:
    faults = []
    excused = {tenant for run in passes if run.before_its_turn for tenant in run.seconds_by_tenant}
    for one, other in combinations([wish for wish in wanted if wish.tenant not in excused], 2):
        since = max(one.since_seconds, other.since_seconds) - _SLACK_SECONDS
        until = min(one.until_seconds, other.until_seconds) + _SLACK_SECONDS
        if one.tenant == other.tenant or until <= since:
            continue
        ahead = lowest = highest = 0.0
        longest = {one.tenant: 0.0, other.tenant: 0.0}
        for run in passes:
            if run.start_seconds < since or run.end_seconds > until:
                continue
            for wish, sign in ((one, 1), (other, -1)):
                own = run.seconds_by_tenant.get(wish.tenant, 0.0) / weights[wish.tenant]
                longest[wish.tenant] = max(longest[wish.tenant], own)
                ahead += sign * own
            lowest, highest = min(lowest, ahead), max(highest, ahead)
        bound = sum(longest.values()) + 2 * settings.ride_seconds
        if highest - lowest > bound + _SLACK_SECONDS:
            faults.append(
                f"{one.tenant} and {other.tenant} both wait from {since} to {until}, but drift apart by "
                f"{highest - lowest} s over their weights; allowed are {bound}"
            )
    return faults


def _latency_faults(passes: Sequence[PassRun], *, settings: ShareSettings) -> list[str]:
    faults = []
    without_serving = 0.0
    for run in passes:
        if run.kind is WorkKind.SERVING:
            without_serving = 0.0
            continue
        is_first = without_serving == 0.0
        without_serving += run.end_seconds - run.start_seconds
        # right after serving a pass that cannot be made smaller may run, else it never would
        if run.requests_waited and not is_first and without_serving > settings.max_pass_seconds + _SLACK_SECONDS:
            faults.append(f"requests wait, but at {run.end_seconds} others had the base for {without_serving} s")
    return faults
