"""Which waiting task trains next on a base, and which gives its seat to it: by the shares of tenants.

Pure. A seat is a task's place among those that train; what several tasks do in one pass is decided at each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["SeatChange", "SeatedTask", "next_seat"]


@dataclass(frozen=True, kw_only=True)
class SeatedTask:
    """A task, and whose it is; ``priority`` counts among the tasks of its tenant alone."""

    name: str
    tenant: str
    priority: int = 0


@dataclass(frozen=True, kw_only=True)
class SeatChange:
    """A task that takes a seat, and the one that gives it; None where there is a free one."""

    begins: str
    parks: str | None = None


def next_seat(
    waiting: Sequence[SeatedTask],
    seated: Sequence[SeatedTask],
    *,
    num_seats: int,
    weight: Callable[[str], float],
) -> SeatChange | None:
    """Return the next change; None where every waiting task has to wait on.

    A tenant without a seat is next, then the one with the fewest over its weight, each with its most urgent task. If no
    seat is free, the tenant with the most gives one: its least urgent task, the last that came. It keeps its last seat,
    and does not have fewer over its weight than a tenant that has one already.

    Args:
        waiting: In the order in which they came.
        seated: In the order in which they were seated.
    """
    if not waiting:
        return None
    held = Counter(task.tenant for task in seated)
    first: dict[str, SeatedTask] = {}
    for task in sorted(waiting, key=lambda task: -task.priority):
        first.setdefault(task.tenant, task)
    order = {task.tenant: place for place, task in reversed([*enumerate(waiting)])}
    tenant = min(first, key=lambda name: (held[name] > 0, (held[name] + 1) / weight(name), order[name]))
    chosen = first[tenant]
    if len(seated) < num_seats:
        return SeatChange(begins=chosen.name)
    own = [task for task in seated if task.tenant == tenant]
    if own and (least := min(reversed(own), key=lambda task: task.priority)).priority < chosen.priority:
        return SeatChange(begins=chosen.name, parks=least.name)
    several = [name for name in held if held[name] > 1]
    if not several:
        return None
    most = max(several, key=lambda name: held[name] / weight(name))
    is_less_even = (held[most] - 1) / weight(most) < (held[tenant] + 1) / weight(tenant)
    if most == tenant or (held[tenant] and is_less_even):
        return None
    theirs = [task for task in seated if task.tenant == most]
    return SeatChange(begins=chosen.name, parks=min(reversed(theirs), key=lambda task: task.priority).name)
