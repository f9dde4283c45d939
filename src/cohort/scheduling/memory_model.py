"""Bytes of a pack on one GPU: the base model's shard, exact adapter state, and a fitted peak of activations.

    base shard + M_hat(tokens of a pass) + adapter state <= load factor * memory of the GPU
    M_hat = k0 + k1 * tokens + k2 * sum over sequences of len^2

Source: ALTO A.3 (the fit) and PLoRA App. B (the state). PLoRA's printed formula counts moments and precision twice;
here each array is counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy.optimize import nnls

__all__ = [
    "ActivationFit",
    "ActivationPeak",
    "AdaptedLinear",
    "AdapterSharding",
    "MemoryModel",
    "PeakSample",
    "Sharding",
    "StatePrecision",
    "adapter_state_bytes",
    "base_shard_bytes",
    "fit_activation_peak",
    "largest_that_fits",
]


class AdapterSharding(Enum):
    """Which LoRA factors tensor parallelism splits; the base is column-parallel at q, k, v, gate and up, else row-."""

    MEGATRON = "megatron"
    """B of column-parallel and A of row-parallel linears are split; the other factor is whole on every GPU."""
    S_LORA = "s_lora"
    """Every factor is split."""
    BLOCK_DIAGONAL = "block_diagonal"
    """Every factor is split, and the factor beside the sharded side has a block per shard (BD-LoRA)."""


@dataclass(frozen=True, kw_only=True)
class AdaptedLinear:
    """One adapted linear of one layer."""

    in_features: int
    out_features: int
    is_row_parallel: bool = False


@dataclass(frozen=True, kw_only=True)
class StatePrecision:
    """Bytes an entry of each array takes; ``master`` is 4 where weights are float32 masters beside a compute copy."""

    weight: int = 4
    gradient: int = 4
    moment: int = 4
    master: int = 0


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """How a task is spread over GPUs.

    Attributes:
        tensor: Degree of tensor parallelism.
        pipeline: Stages; a GPU holds at most ``ceil(layers / pipeline)`` layers.
        zero_stage: 0 to 3: divides nothing, moments and masters, also gradients, also weights.
        data: GPUs that ZeRO divides by.
        adapter: Degree of adapter parallelism: divides the base model, never a trial's own state.
        scheme: Which factors tensor parallelism splits.
    """

    tensor: int = 1
    pipeline: int = 1
    zero_stage: int = 0
    data: int = 1
    adapter: int = 1
    scheme: AdapterSharding = AdapterSharding.MEGATRON

    def __post_init__(self) -> None:
        if min(self.tensor, self.pipeline, self.data, self.adapter) < 1:
            raise ValueError(f"every degree must be at least 1, but this is {self}")
        if not 0 <= self.zero_stage <= 3:
            raise ValueError(f"zero_stage must be 0, 1, 2 or 3, but it is {self.zero_stage}")

    @property
    def num_gpus(self) -> int:
        """GPUs in all."""
        return self.tensor * self.pipeline * self.data * self.adapter


WHOLE = Sharding()


def adapter_state_bytes(
    linears: Sequence[AdaptedLinear],
    *,
    r: int,
    num_layers: int,
    precision: StatePrecision | None = None,
    sharding: Sharding = WHOLE,
) -> int:
    """Return the bytes of one adapter's weights, gradients, moments and masters on the fullest GPU.

    Args:
        linears: The adapted linears of one layer.
        r: LoRA rank (BD-LoRA: the total rank).
        num_layers: Decoder layers.
        precision: Bytes of each array; float32 without masters by default.
        sharding: How the task is spread.
    """
    sizes = precision or StatePrecision()
    entries = sum(_factor_entries(linear, r=r, sharding=sharding) for linear in linears)
    entries *= -(-num_layers // sharding.pipeline)
    moments = 2 * sizes.moment + sizes.master
    divisors = [sharding.data if sharding.zero_stage >= stage else 1 for stage in (1, 2, 3)]
    return (
        -(-entries // divisors[0]) * moments
        + -(-entries // divisors[1]) * sizes.gradient
        + -(-entries // divisors[2]) * sizes.weight
    )


def _factor_entries(linear: AdaptedLinear, *, r: int, sharding: Sharding) -> int:
    """Entries of A [r, in] and B [out, r] on one GPU."""
    degree, split = sharding.tensor, -(-r // sharding.tensor)
    near, far = linear.in_features, linear.out_features  # near: the side that is whole in a column-parallel linear
    if linear.is_row_parallel:
        near, far = far, near
    far_shard = -(-far // degree)
    if sharding.scheme is AdapterSharding.MEGATRON:
        return r * near + r * far_shard
    if sharding.scheme is AdapterSharding.S_LORA:
        return split * near + r * far_shard
    return split * near + split * far_shard


def base_shard_bytes(weight_bytes: int, *, sharding: Sharding = WHOLE) -> int:
    """Return the bytes of the frozen base on one GPU; adapter parallelism and ZeRO-3 shard it, too."""
    divisor = sharding.tensor * sharding.pipeline * sharding.adapter
    if sharding.zero_stage == 3:
        divisor *= sharding.data
    return -(-weight_bytes // divisor)


@dataclass(frozen=True, kw_only=True)
class PeakSample:
    """One measured pass: peak bytes beyond base and adapter state."""

    num_tokens: int
    sum_squares: int
    peak_bytes: float


@dataclass(frozen=True, kw_only=True)
class ActivationPeak:
    """``k0 + k1 * tokens + k2 * sum len^2`` bytes, none of them negative."""

    fixed_bytes: float
    bytes_per_token: float
    bytes_per_square: float = 0.0

    def predict(self, num_tokens: float, *, sum_squares: float = 0.0) -> float:
        """Return the predicted peak bytes of a pass."""
        return self.fixed_bytes + self.bytes_per_token * num_tokens + self.bytes_per_square * sum_squares


@dataclass(frozen=True, kw_only=True)
class ActivationFit:
    """A fitted peak and its mean absolute errors in percent; the held-out one on passes the fit never saw."""

    peak: ActivationPeak
    fit_error_percent: float
    held_out_error_percent: float
    num_fitted: int
    num_held_out: int


def fit_activation_peak(
    samples: Sequence[PeakSample], *, held_out: Sequence[PeakSample] | None = None
) -> ActivationFit:
    """Fit the peak by non-negative least squares of relative errors.

    Args:
        samples: Measured passes.
        held_out: Passes to judge the fit by; by default every fourth of ``samples`` is left out of the fit.

    Raises:
        ValueError: fewer than three passes remain to fit, or none to judge by.
    """
    if held_out is None:
        held_out = samples[3::4]
        samples = [sample for index, sample in enumerate(samples) if index % 4 != 3]
    if len(samples) < 3 or not held_out:
        raise ValueError(f"a fit needs 3 passes and 1 to judge it by, but has {len(samples)} and {len(held_out)}")
    design = np.array([[1.0, sample.num_tokens, sample.sum_squares] for sample in samples])
    peaks = np.array([sample.peak_bytes for sample in samples])
    relative = design / peaks[:, None]
    # columns differ by ten orders of magnitude; scaled to one, so that the solver's tolerance means the same to each
    scales = np.maximum(relative.max(axis=0), 1e-300)
    solution, _ = nnls(relative / scales, np.ones(len(samples)))
    k0, k1, k2 = (float(value) for value in solution / scales)
    peak = ActivationPeak(fixed_bytes=k0, bytes_per_token=k1, bytes_per_square=k2)
    return ActivationFit(
        peak=peak,
        fit_error_percent=_mean_error_percent(peak, samples),
        held_out_error_percent=_mean_error_percent(peak, held_out),
        num_fitted=len(samples),
        num_held_out=len(held_out),
    )


def _mean_error_percent(peak: ActivationPeak, samples: Sequence[PeakSample]) -> float:
    errors = [
        abs(peak.predict(sample.num_tokens, sum_squares=sample.sum_squares) / sample.peak_bytes - 1)
        for sample in samples
    ]
    return 100 * sum(errors) / len(errors)


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """What fits on one GPU.

    Attributes:
        gpu_bytes: Memory of the GPU.
        load_factor: Share of it that may be planned, in (0, 1]; the rest is what the allocator wastes.
        base_bytes: The base model's shard.
        activations: Peak beyond base and state.
    """

    gpu_bytes: float
    base_bytes: float
    activations: ActivationPeak
    load_factor: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.load_factor <= 1:
            raise ValueError(f"load_factor must be in (0, 1], but it is {self.load_factor}")

    @property
    def room_bytes(self) -> float:
        """Bytes for activations and adapter state; negative when the base alone does not fit."""
        return self.load_factor * self.gpu_bytes - self.base_bytes

    def fits(self, *, num_tokens: float, state_bytes: float, sum_squares: float = 0.0) -> bool:
        """Return whether a pass of ``num_tokens`` fits beside ``state_bytes`` of resident adapters."""
        return self.activations.predict(num_tokens, sum_squares=sum_squares) + state_bytes <= self.room_bytes


def largest_that_fits(fits: Callable[[int], bool], *, at_most: int) -> int:
    """Return the largest size in ``1 .. at_most`` for which ``fits`` holds, by binary search; 0 when none does.

    ``fits`` is asked about ``log2(at_most)`` sizes, smallest first until one fails, so that a probe that must run out
    of memory to answer does so as seldom as can be.
    """
    low, high = 0, 1
    while high <= at_most and fits(high):
        low, high = high, high * 2
    high = min(high, at_most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
