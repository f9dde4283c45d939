"""What may run next on a resident base, and what was chosen, as immutable records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from cohort.core.errors import InputError, Problem

__all__ = ["ReadyWork", "ShareSettings", "Turn", "WorkKind"]


class WorkKind(Enum):
    """The three uses of a resident base."""

    SWEEP = "sweep"
    CLIENT_TRAINING = "client training"
    SERVING = "serving"


@dataclass(frozen=True, kw_only=True)
class ShareSettings:
    """How turns are given.

    Attributes:
        max_pass_seconds: While requests wait to be served, other passes take no longer than this between two passes of
            serving.
        floor_share: Share of ``max_pass_seconds`` that a serving pass may take which comes before its turn. It bounds
            what serving can take above its tenants' shares.
        ride_seconds: By how many virtual seconds a tenant may be ahead of the least charged one and still ride in a
            pass while others wait for another pass. More packs better, less keeps shares closer.
    """

    max_pass_seconds: float = 0.25
    floor_share: float = 0.1
    ride_seconds: float = 0.25

    def __post_init__(self) -> None:
        problems = [
            Problem(
                where=name,
                found=str(value),
                allowed=allowed,
                hint=f"Leave {name} out for its default of {getattr(type(self), name)}.",
            )
            for name, value, allowed, is_right in (
                ("max_pass_seconds", self.max_pass_seconds, "more than 0", self.max_pass_seconds > 0),
                ("floor_share", self.floor_share, "above 0 and at most 1", 0 < self.floor_share <= 1),
                ("ride_seconds", self.ride_seconds, "0 or more", self.ride_seconds >= 0),
            )
            if not is_right
        ]
        if problems:
            raise InputError(problems)


@dataclass(frozen=True, kw_only=True)
class ReadyWork:
    """One pass that could run now.

    Attributes:
        name: What the caller calls it.
        tokens: By tenant, the tokens of it that wait to ride in this pass; a tenant with 0 waits too, as for an
            optimizer step.
        expected_seconds: How long the pass would take if all of them rode; 0 where that is not known.
    """

    name: str
    kind: WorkKind
    tokens: Mapping[str, int]
    expected_seconds: float = 0.0

    def __post_init__(self) -> None:
        assert self.tokens, f"{self.name} is work of no tenant: leave it out"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The pass that runs next.

    Attributes:
        tenants: Who may ride in it, the least charged first. What does not fit waits for its next turn.
        max_seconds: The pass is made so small that it takes no longer, where it can be; None: no limit.
        before_its_turn: Serving goes first although its tenants had their share, because requests wait too long.
    """

    work: ReadyWork
    tenants: tuple[str, ...]
    max_seconds: float | None = None
    before_its_turn: bool = False
