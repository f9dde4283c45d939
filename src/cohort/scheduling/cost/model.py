"""Seconds of an optimizer step of a pack on d GPUs, and of a whole pack from its first step to its last member's end.

A step's seconds are non-negative sums of what the pack holds:

    fixed + adapters + sequences + rank rows + tokens + rank rows * tokens + sum len^2
    + sum over knees of max(0, tokens - knee)

convex and increasing in the pack, so that the planners can optimise over it exactly. The knees let a step cost little
below what saturates the GPU and its full price beyond. A step whose passes are launched kernel by kernel takes at least
the host's time for that; such a cost predicts better, and is not convex: planners take the one without.
Coefficients are fitted on measured steps (fit.py); for several GPUs they may be derived from those of one GPU, and
are labelled so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

__all__ = [
    "COEFFICIENTS",
    "CostModel",
    "CostSource",
    "Interconnect",
    "Knee",
    "LaunchFloor",
    "LaunchRegime",
    "StepCost",
    "StepSample",
    "AdapterWork",
    "derive_cost",
    "pack_seconds",
]


COEFFICIENTS = (
    "fixed_seconds",
    "seconds_per_adapter",
    "seconds_per_rank_row",
    "seconds_per_token",
    "seconds_per_rank_token",
    "seconds_per_square",
    "seconds_per_sequence",
)
"""The fields of :class:`StepCost` that a fit finds, knees aside, in its order."""


@dataclass(frozen=True, kw_only=True)
class AdapterWork:
    """What one adapter adds to a pack.

    Attributes:
        num_tokens: Tokens of one of its optimizer steps.
        sum_squares: Sum over the sequences of a step of their squared length.
        num_sequences: Sequences of one of its steps.
    """

    r: int
    num_tokens: float
    num_steps: int = 1
    sum_squares: float = 0.0
    num_sequences: float = 0.0

    @property
    def weight(self) -> float:
        """Rank times tokens to train, PLoRA's measure of LoRA work (the rank alone when all train equally long)."""
        return self.r * self.num_tokens * self.num_steps


@dataclass(frozen=True, kw_only=True)
class StepSample:
    """One measured step."""

    pack: tuple[AdapterWork, ...]
    seconds: float

    @property
    def num_tokens(self) -> float:
        return sum(work.num_tokens for work in self.pack)

    @property
    def num_sequences(self) -> float:
        return sum(work.num_sequences for work in self.pack)


@dataclass(frozen=True, kw_only=True)
class Knee:
    """Seconds a token beyond ``at_tokens`` costs on top."""

    at_tokens: float
    seconds_per_token: float


@dataclass(frozen=True, kw_only=True)
class LaunchFloor:
    """The host's time for passes that are launched kernel by kernel: a step takes at least so long.

    Attributes:
        from_tokens: Steps of fewer tokens are replayed as graphs and have no floor.
        tokens_per_pass: A step of more tokens takes several passes.
        seconds_per_sequence: More for each sequence of the step.
    """

    from_tokens: float
    tokens_per_pass: float
    seconds_per_pass: float
    seconds_per_sequence: float = 0.0

    def seconds(self, *, num_tokens: float, num_sequences: float) -> float:
        if num_tokens < self.from_tokens:
            return 0.0
        # Each pass launches its kernels again.
        passes = math.ceil(num_tokens / self.tokens_per_pass)
        return passes * self.seconds_per_pass + num_sequences * self.seconds_per_sequence


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Coefficients of a step's seconds, none of them negative; ``launches`` where passes are launched by the host."""

    fixed_seconds: float
    seconds_per_token: float
    seconds_per_adapter: float = 0.0
    seconds_per_sequence: float = 0.0
    seconds_per_rank_row: float = 0.0
    seconds_per_rank_token: float = 0.0
    seconds_per_square: float = 0.0
    knees: tuple[Knee, ...] = ()
    launches: LaunchFloor | None = None

    def __post_init__(self) -> None:
        coefficients = [getattr(self, name) for name in COEFFICIENTS]
        coefficients += [knee.seconds_per_token for knee in self.knees]
        # Planners minimise this sum exactly, which needs it convex and increasing in the pack.
        if min(coefficients) < 0:
            raise ValueError(f"no coefficient may be negative, but this is {self}")

    def own_seconds(self, work: AdapterWork) -> float:
        """Return what one trial adds to a step, knees aside."""
        return (
            self.seconds_per_adapter
            + self.seconds_per_sequence * work.num_sequences
            + self.seconds_per_rank_row * work.r
            + (self.seconds_per_token + self.seconds_per_rank_token * work.r) * work.num_tokens
            + self.seconds_per_square * work.sum_squares
        )

    def step_seconds(self, pack: Sequence[AdapterWork]) -> float:
        if not pack:
            return 0.0
        tokens = sum(work.num_tokens for work in pack)
        # A GPU hides small steps behind the reads of the frozen weights; tokens beyond a knee cost their full price.
        beyond = sum(knee.seconds_per_token * max(0.0, tokens - knee.at_tokens) for knee in self.knees)
        seconds = self.fixed_seconds + sum(self.own_seconds(work) for work in pack) + beyond
        if self.launches is None:
            return seconds
        sequences = sum(work.num_sequences for work in pack)
        # Launches and work overlap: the step takes the longer of the two.
        return max(seconds, self.launches.seconds(num_tokens=tokens, num_sequences=sequences))


@dataclass(frozen=True, kw_only=True)
class LaunchRegime:
    """From how many tokens on a step is launched by the host, and how many tokens one pass takes."""

    from_tokens: float
    tokens_per_pass: float


def pack_seconds(cost: StepCost, pack: Sequence[AdapterWork]) -> float:
    """Return the seconds until the last member ends: step by step, each phase with the members that still train."""
    # Members that end leave the pack, so between two ends every step costs the same.
    ends = sorted({0, *(work.num_steps for work in pack)})
    return sum(
        (until - since) * cost.step_seconds([work for work in pack if work.num_steps >= until])
        for since, until in pairwise(ends)
    )


class CostSource(Enum):
    """Where coefficients come from."""

    MEASURED = "measured"
    """Fitted on at least eight measured packs."""
    SCALED = "scaled"
    """Analytic, corrected by the few packs that were measured."""
    ANALYTIC = "analytic"
    """From sizes and data sheets alone."""


@dataclass(frozen=True, kw_only=True)
class Interconnect:
    """What tensor parallelism costs between GPUs.

    Attributes:
        bytes_per_second: What one GPU's links carry, each way.
        seconds_per_collective: Latency of one all-reduce.
        collectives_per_step: All-reduces of a step: two a layer forward and two backward.
        bytes_per_token: Activation bytes that each all-reduce moves for a token.
    """

    bytes_per_second: float
    seconds_per_collective: float
    collectives_per_step: int
    bytes_per_token: float


def derive_cost(cost: StepCost, *, num_gpus: int, interconnect: Interconnect) -> StepCost:
    """Return analytic coefficients for ``num_gpus``: work is divided, the fixed part is not, collectives are added."""
    assert num_gpus >= 1, "a pack runs on at least one GPU"
    if num_gpus == 1:
        return cost
    # A ring all-reduce of n bytes over d GPUs sends 2 (d - 1) / d * n bytes from each.
    traffic = 2 * (num_gpus - 1) / num_gpus * interconnect.bytes_per_token * interconnect.collectives_per_step
    return StepCost(
        fixed_seconds=cost.fixed_seconds + interconnect.seconds_per_collective * interconnect.collectives_per_step,
        # Not divided, like the fixed part.
        seconds_per_adapter=cost.seconds_per_adapter,
        seconds_per_sequence=cost.seconds_per_sequence / num_gpus,
        seconds_per_rank_row=cost.seconds_per_rank_row / num_gpus,
        seconds_per_token=cost.seconds_per_token / num_gpus + traffic / interconnect.bytes_per_second,
        seconds_per_rank_token=cost.seconds_per_rank_token / num_gpus,
        seconds_per_square=cost.seconds_per_square / num_gpus,
        knees=tuple(
            Knee(at_tokens=knee.at_tokens, seconds_per_token=knee.seconds_per_token / num_gpus) for knee in cost.knees
        ),
    )


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Coefficients by number of GPUs, and where each comes from."""

    by_num_gpus: Mapping[int, StepCost]
    sources: Mapping[int, CostSource]

    def __post_init__(self) -> None:
        if not self.by_num_gpus or set(self.by_num_gpus) != set(self.sources) or min(self.by_num_gpus) < 1:
            raise ValueError(
                "a cost model has coefficients and their source for the same numbers of GPUs, at least one"
            )

    @classmethod
    def from_one_gpu(cls, cost: StepCost, *, degrees: Sequence[int], interconnect: Interconnect) -> CostModel:
        """Return a model measured on one GPU and analytic on the other ``degrees``."""
        found = {d: derive_cost(cost, num_gpus=d, interconnect=interconnect) for d in degrees}
        sources = {d: CostSource.MEASURED if d == 1 else CostSource.ANALYTIC for d in found}
        return cls(by_num_gpus=found, sources=sources)

    def seconds(self, pack: Sequence[AdapterWork], *, num_gpus: int) -> float:
        """Return the seconds of the whole pack on ``num_gpus``.

        Raises:
            KeyError: no coefficients for ``num_gpus``.
        """
        return pack_seconds(self.by_num_gpus[num_gpus], pack)
