"""How a run divided the trials that were left over its executors: a plan of packs, or slots that refill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

__all__ = ["PackRecord", "PackingRecord"]


@dataclass(frozen=True, kw_only=True)
class PackRecord:
    """One planned pack, in seconds of run time."""

    trial_ids: tuple[int, ...]
    rank: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, kw_only=True)
class PackingRecord:
    """What was chosen at one moment.

    Attributes:
        at_seconds: That moment, in run time.
        choice: ``planned`` or ``refill``.
        reason: Why, in words.
        planned_seconds, refill_seconds: Predicted from then on; None where it was not asked.
        packs: The plan as it was made; none with ``refill``.
        num_changes: How often packs that had not begun were placed again when another one ended.
    """

    at_seconds: float
    choice: str
    reason: str
    planned_seconds: float | None = None
    refill_seconds: float | None = None
    packs: tuple[PackRecord, ...] = ()
    num_changes: int = 0

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        packs = tuple(PackRecord(**{**pack, "trial_ids": tuple(pack["trial_ids"])}) for pack in entry["packs"])
        return cls(**{**entry, "packs": packs})
