"""Seconds of a step from arithmetic on sizes, before anything was measured: a first guess that measurements replace.

A step takes at least its launches and two reads of the frozen weights; beyond the tokens that hide those reads it takes
its products. Adapters add narrow products, which reach a small part of the peak, and the optimizer's traffic.
The shares of the peaks are those of one H200 (8B shape: 82 % of a practical ceiling of 709 TFLOP/s).
"""

from __future__ import annotations

from dataclasses import dataclass

from cohort.scheduling.cost.hardware import Hardware
from cohort.scheduling.cost.model import Interconnect, Knee, LaunchFloor, LaunchRegime, StepCost

__all__ = ["ModelWork", "analytic_interconnect", "analytic_step_cost"]

# shares of a GPU's peak: frozen products; adapters' narrow ones; attention; memory
PRODUCT_SHARE = 0.58
ADAPTER_SHARE = 0.065
ATTENTION_SHARE = 0.2
MEMORY_SHARE = 0.8
# of a layer, forward and backward: replayed on a GPU, called one by one on a CPU
GPU_LAYER_SECONDS = 2.0e-4
CPU_LAYER_SECONDS = 3.5e-3
# of a layer that the host launches kernel by kernel, forward and backward (benchmarks/results/cost_model.json)
HOST_LAYER_SECONDS = 6.4e-3
# of a sequence and of an adapter in one adapted linear on a CPU, where their products are calls of their own
CPU_SEQUENCE_SECONDS = 1.0e-4
CPU_ADAPTER_SECONDS = 4.7e-4
# of an adapter in a whole step on a GPU
GPU_ADAPTER_SECONDS = 1.0e-4
# master weight, two moments and gradient read and written, bf16 copy written
OPTIMIZER_BYTES = 34


@dataclass(frozen=True, kw_only=True)
class ModelWork:
    """What the frozen model and one rank of an adapter amount to.

    Attributes:
        flops_per_token: Work of a training pass: forward and input gradients, loss head included.
        flops_per_square: Work of attention, forward and backward, by squared length of a sequence.
        weight_bytes: The frozen model on all its devices together.
        rank_width: Adapter entries of one rank: sum of inputs and outputs of the adapted linears.
        num_linears: Adapted linears of all layers.
    """

    flops_per_token: float
    flops_per_square: float
    weight_bytes: float
    rank_width: int
    num_linears: int
    num_layers: int
    hidden_size: int
    bytes_per_value: int


def analytic_step_cost(work: ModelWork, hardware: Hardware, *, launched: LaunchRegime | None = None) -> StepCost:
    """Return a step's coefficients on one device.

    Args:
        launched: When a GPU's steps are launched by the host; None: never, and the result is convex.
    """
    is_gpu = hardware.is_gpu
    per_token = work.flops_per_token / (hardware.flops_per_second * (PRODUCT_SHARE if is_gpu else 1.0))
    memory = hardware.bytes_per_second * MEMORY_SHARE
    reads = 2 * work.weight_bytes / memory
    launches = work.num_layers * (GPU_LAYER_SECONDS if is_gpu else CPU_LAYER_SECONDS)
    # where products begin to take longer than the reads they wait for
    hidden_tokens = reads / per_token
    adapter_rate = hardware.flops_per_second * (ADAPTER_SHARE if is_gpu else 0.5)
    return StepCost(
        fixed_seconds=launches + reads,
        seconds_per_token=0.0 if is_gpu else per_token,
        seconds_per_adapter=GPU_ADAPTER_SECONDS if is_gpu else CPU_ADAPTER_SECONDS * work.num_linears,
        seconds_per_sequence=0.0 if is_gpu else CPU_SEQUENCE_SECONDS * work.num_linears,
        seconds_per_rank_row=OPTIMIZER_BYTES * work.rank_width / memory,
        seconds_per_rank_token=6 * work.rank_width / adapter_rate,
        seconds_per_square=work.flops_per_square / (hardware.flops_per_second * (ATTENTION_SHARE if is_gpu else 1.0)),
        knees=(Knee(at_tokens=hidden_tokens, seconds_per_token=per_token),) if is_gpu else (),
        launches=LaunchFloor(
            from_tokens=launched.from_tokens,
            tokens_per_pass=launched.tokens_per_pass,
            seconds_per_pass=work.num_layers * HOST_LAYER_SECONDS,
        )
        if launched is not None
        else None,
    )


def analytic_interconnect(work: ModelWork, hardware: Hardware) -> Interconnect:
    """Return what tensor parallelism costs between devices: two all-reduces a layer forward and two backward."""
    return Interconnect(
        bytes_per_second=max(hardware.link_bytes_per_second, 1e9),
        seconds_per_collective=15e-6,
        collectives_per_step=4 * work.num_layers,
        bytes_per_token=float(work.hidden_size * work.bytes_per_value),
    )
