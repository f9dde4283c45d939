"""Seconds of an optimizer step of a pack on d GPUs, and of a whole pack from its first step to its last member's end.

A step's seconds are non-negative sums of what the pack holds:

    fixed + adapters + sequences + rank rows + tokens + rank rows * tokens + sum len^2
    + sum over knees of max(0, tokens - knee)

convex and increasing in the pack, so that the planners can optimise over it exactly. The knees let a step cost little
below what saturates the GPU and its full price beyond. Coefficients are fitted on measured steps; for several GPUs
they may be derived from those of one GPU, and are labelled so.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import numpy as np
from scipy.optimize import nnls

__all__ = [
    "CostFit",
    "CostModel",
    "CostSource",
    "Interconnect",
    "Knee",
    "StepCost",
    "StepSample",
    "TrialWork",
    "derive_cost",
    "fit_step_cost",
    "pack_seconds",
]


@dataclass(frozen=True, kw_only=True)
class TrialWork:
    """What one trial adds to a pack.

    Attributes:
        r: LoRA rank.
        num_tokens: Tokens of one of its optimizer steps.
        num_steps: Steps it trains.
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
class Knee:
    """Seconds a token beyond ``at_tokens`` costs on top."""

    at_tokens: float
    seconds_per_token: float


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Coefficients of a step's seconds, none of them negative."""

    fixed_seconds: float
    seconds_per_token: float
    seconds_per_adapter: float = 0.0
    seconds_per_sequence: float = 0.0
    seconds_per_rank_row: float = 0.0
    seconds_per_rank_token: float = 0.0
    seconds_per_square: float = 0.0
    knees: tuple[Knee, ...] = ()

    def __post_init__(self) -> None:
        coefficients = [
            self.fixed_seconds,
            self.seconds_per_token,
            self.seconds_per_adapter,
            self.seconds_per_sequence,
            self.seconds_per_rank_row,
            self.seconds_per_rank_token,
            self.seconds_per_square,
            *(knee.seconds_per_token for knee in self.knees),
        ]
        if min(coefficients) < 0:
            raise ValueError(f"no coefficient may be negative, but this is {self}")

    def own_seconds(self, work: TrialWork) -> float:
        """Return what one trial adds to a step, knees aside."""
        return (
            self.seconds_per_adapter
            + self.seconds_per_sequence * work.num_sequences
            + self.seconds_per_rank_row * work.r
            + (self.seconds_per_token + self.seconds_per_rank_token * work.r) * work.num_tokens
            + self.seconds_per_square * work.sum_squares
        )

    def step_seconds(self, pack: Sequence[TrialWork]) -> float:
        """Return the seconds of one step of all of ``pack``; 0 for an empty one."""
        if not pack:
            return 0.0
        tokens = sum(work.num_tokens for work in pack)
        beyond = sum(knee.seconds_per_token * max(0.0, tokens - knee.at_tokens) for knee in self.knees)
        return self.fixed_seconds + sum(self.own_seconds(work) for work in pack) + beyond


def pack_seconds(cost: StepCost, pack: Sequence[TrialWork]) -> float:
    """Return the seconds until the last member ends: step by step, each phase with the members that still train."""
    ends = sorted({0, *(work.num_steps for work in pack)})
    return sum(
        (until - since) * cost.step_seconds([work for work in pack if work.num_steps >= until])
        for since, until in pairwise(ends)
    )


class CostSource(Enum):
    """Where coefficients come from."""

    MEASURED = "measured"
    ANALYTIC = "analytic"


@dataclass(frozen=True, kw_only=True)
class StepSample:
    """One measured step."""

    pack: tuple[TrialWork, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CostFit:
    """Fitted coefficients and their errors in percent; held-out ones on packs the fit never saw."""

    cost: StepCost
    fit_median_error_percent: float
    held_out_median_error_percent: float
    held_out_worst_error_percent: float
    num_fitted: int
    num_held_out: int


def fit_step_cost(
    samples: Sequence[StepSample],
    *,
    held_out: Sequence[StepSample] | None = None,
    knees: Sequence[float] = (),
) -> CostFit:
    """Fit a step's coefficients by non-negative least squares of relative errors.

    Args:
        samples: Measured steps of mixed packs.
        held_out: Steps to judge the fit by; by default every fourth of ``samples`` is left out of the fit.
        knees: Token counts where the price of a token may rise; by default the quartiles of the samples' tokens.

    Raises:
        ValueError: too few steps to fit or to judge by, or a step without seconds or trials.
    """
    if held_out is None:
        held_out = samples[3::4]
        samples = [sample for index, sample in enumerate(samples) if index % 4 != 3]
    if len(samples) < 3 or not held_out:
        raise ValueError(f"a fit needs 3 steps and 1 to judge it by, but has {len(samples)} and {len(held_out)}")
    for sample in (*samples, *held_out):
        if not sample.pack or not sample.seconds > 0:
            raise ValueError(f"every measured step has trials and seconds above 0, but one is {sample}")
    tokens = [sum(work.num_tokens for work in sample.pack) for sample in samples]
    places = sorted(set(knees or (float(value) for value in np.quantile(tokens, [0.25, 0.5, 0.75]))))
    seconds = np.array([sample.seconds for sample in samples])
    relative = np.array([_features(sample.pack, knees=places) for sample in samples]) / seconds[:, None]
    # columns differ by many orders of magnitude; scaled to one, so that the solver's tolerance means the same to each
    scales = np.maximum(relative.max(axis=0), 1e-300)
    solution, _ = nnls(relative / scales, np.ones(len(samples)))
    values = [float(value) for value in solution / scales]
    cost = StepCost(
        fixed_seconds=values[0],
        seconds_per_adapter=values[1],
        seconds_per_rank_row=values[2],
        seconds_per_token=values[3],
        seconds_per_rank_token=values[4],
        seconds_per_square=values[5],
        seconds_per_sequence=values[6],
        knees=tuple(
            Knee(at_tokens=place, seconds_per_token=slope)
            for place, slope in zip(places, values[7:], strict=True)
            if slope > 0
        ),
    )
    fitted, judged = _errors_percent(cost, samples), _errors_percent(cost, held_out)
    return CostFit(
        cost=cost,
        fit_median_error_percent=statistics.median(fitted),
        held_out_median_error_percent=statistics.median(judged),
        held_out_worst_error_percent=max(judged),
        num_fitted=len(samples),
        num_held_out=len(held_out),
    )


def _features(pack: Sequence[TrialWork], *, knees: Sequence[float]) -> list[float]:
    tokens = sum(work.num_tokens for work in pack)
    return [
        1.0,
        float(len(pack)),
        float(sum(work.r for work in pack)),
        tokens,
        sum(work.r * work.num_tokens for work in pack),
        sum(work.sum_squares for work in pack),
        sum(work.num_sequences for work in pack),
        *(max(0.0, tokens - knee) for knee in knees),
    ]


def _errors_percent(cost: StepCost, samples: Sequence[StepSample]) -> list[float]:
    return [100 * abs(cost.step_seconds(sample.pack) / sample.seconds - 1) for sample in samples]


@dataclass(frozen=True, kw_only=True)
class Interconnect:
    """What tensor parallelism costs between GPUs.

    Attributes:
        bytes_per_second: Of one GPU's links, each way.
        seconds_per_collective: Latency of one all-reduce.
        collectives_per_step: All-reduces of a step: two a layer forward and two backward.
        bytes_per_token: Activation bytes that each all-reduce moves for a token.
    """

    bytes_per_second: float
    seconds_per_collective: float
    collectives_per_step: int
    bytes_per_token: float


def derive_cost(cost: StepCost, *, num_gpus: int, interconnect: Interconnect) -> StepCost:
    """Return analytic coefficients for ``num_gpus``: work is divided, the fixed part is not, collectives come on top.

    A ring all-reduce of n bytes over d GPUs sends 2 (d - 1) / d * n bytes from each.
    """
    assert num_gpus >= 1, "a pack runs on at least one GPU"
    if num_gpus == 1:
        return cost
    traffic = 2 * (num_gpus - 1) / num_gpus * interconnect.bytes_per_token * interconnect.collectives_per_step
    return StepCost(
        fixed_seconds=cost.fixed_seconds + interconnect.seconds_per_collective * interconnect.collectives_per_step,
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

    def seconds(self, pack: Sequence[TrialWork], *, num_gpus: int) -> float:
        """Return the seconds of the whole pack on ``num_gpus``.

        Raises:
            KeyError: no coefficients for ``num_gpus``.
        """
        return pack_seconds(self.by_num_gpus[num_gpus], pack)
