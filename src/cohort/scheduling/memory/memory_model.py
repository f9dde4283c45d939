"""Bytes of a pack on one GPU: the base model's shard, exact adapter state, and the peak of a pass.

    base shard + M_hat(pass) + adapter state + reserve <= (1 - margin) * memory of the GPU

M_hat is fitted (:mod:`.memory_fit`); the reserve is what the allocator held beyond its own peak.

Source: ALTO A.3 and PLoRA App. B (the state). PLoRA's printed formula counts moments and precision twice; here each
array is counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = [
    "AdaptedLinear",
    "AdapterSharding",
    "Sharding",
    "StatePrecision",
    "adapter_state_bytes",
    "base_shard_bytes",
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
