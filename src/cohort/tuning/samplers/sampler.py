"""The interface of all samplers: proposing configurations, learning from results, and how a task file chooses one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cohort.tuning.parameters import Configuration, Value
from cohort.tuning.space import SearchSpace

__all__ = ["EarlierResult", "Sampler", "SamplerKind", "SearchBudget"]


class Sampler(ABC):
    """Proposes configurations within a budget of trials and may learn from results.

    All may be proposed in one wave before any result is known, or a few at a time as slots become free. Trials are
    numbered from 0 in the order of their proposal.
    """

    @abstractmethod
    def propose(self, num: int) -> tuple[Configuration, ...]:
        """Return up to ``num`` new configurations; fewer when the budget or the space is used up."""

    @abstractmethod
    def tell(self, trial_id: int, value: float | None, *, depth: int = 0) -> None:
        """Report what a trial has reached so far; a later report of the same trial takes the place of the earlier.

        A trial that ended early is reported as well: leaving it out would hide that its region is poor.

        Args:
            value: Its objective; None (or a non-finite value) where nothing finite was measured.
            depth: How many comparisons with other trials it has come to, its end counted as one. Values are compared
                at equal depth; a trial that came deeper was better than those left behind, whatever they measured.
        """


@dataclass(frozen=True, kw_only=True)
class EarlierResult:
    """What an earlier search measured, for a sampler that learns.

    Attributes:
        values: Hyperparameters by name; those that are drawn count.
        value: The task's metric.
    """

    values: Mapping[str, Value]
    value: float


@dataclass(frozen=True, kw_only=True)
class SearchBudget:
    """What a sampler works with besides the space.

    Attributes:
        trials: Most proposals over its life, at least 1. A sampler that takes the whole space ignores it.
        seed: Fixes all draws.
        maximize: Whether a larger result is better.
        earlier: Results of earlier searches; only a sampler that learns has any.
    """

    trials: int = 1
    seed: int = 0
    maximize: bool = False
    earlier: tuple[EarlierResult, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SamplerKind:
    """One choice of ``search.sampler``. A module of this folder offers it as ``SAMPLER``.

    Another package offers it by an entry point of the group ``cohort.samplers``, named as the sampler is.

    Attributes:
        name: The word in the task file.
        summary: What it proposes, for the schema and the docs.
        build: Returns a fresh sampler.
        takes_whole_space: Whether it proposes every configuration, all at once: the space must be listable then, and
            there is no number of trials to choose.
        learns: Whether results change its proposals. It then proposes some trials at first and one for each that ends;
            any other proposes all at once.
    """

    name: str
    summary: str
    build: Callable[[SearchSpace, SearchBudget], Sampler]
    takes_whole_space: bool = False
    learns: bool = False
