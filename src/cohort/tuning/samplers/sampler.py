"""What a sampler is: it proposes configurations, and may learn from what came of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

from cohort.tuning.parameters import Configuration

__all__ = ["Proposal", "Sampler", "SamplerName"]


class SamplerName(StrEnum):
    """How configurations are chosen."""

    GRID = "grid"
    RANDOM = "random"
    TPE = "tpe"


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A configuration to try; ids count from 0 in the order of proposal."""

    trial_id: int
    configuration: Configuration


class Sampler(ABC):
    """Proposes configurations within a budget of trials and may learn from results.

    All may be proposed in one wave before any result is known, or a few at a time as slots become free.
    """

    @abstractmethod
    def propose(self, num: int) -> tuple[Proposal, ...]:
        """Return up to ``num`` new proposals, none equal to an earlier one; fewer when budget or space is used up."""

    @abstractmethod
    def tell(self, trial_id: int, value: float | None, *, depth: int = 0) -> None:
        """Report what a trial has reached so far; a later report of the same trial takes the place of the earlier.

        A trial that ended early is told as well: leaving it out would hide that its region is poor.

        Args:
            trial_id: Of a proposal.
            value: Its objective; None (or a non-finite value) where nothing finite was measured.
            depth: How many comparisons with other trials it has come to, its end counted as one. Values are compared
                at equal depth; a trial that came deeper was better than those left behind, whatever they measured.
        """
