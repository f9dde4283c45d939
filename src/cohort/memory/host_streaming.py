"""How many layers of the base model stay in host memory and pass through the GPU, so that a larger model trains.

A resident layer costs its bytes; a streamed one costs a copy forward and one backward in each pass. So only a base
model that does not fit is streamed, and no more of its layers than it takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from cohort.core.errors import InputError, Problem
from cohort.core.memory_records import GradientCheckpointing
from cohort.core.units import format_bytes
from cohort.machine.machine import Machine, host_memory_bytes
from cohort.memory.demand import Demand
from cohort.memory.pass_estimates import estimate_passes
from cohort.models import counts
from cohort.models.checkpoint_layout import checkpoint_layout
from cohort.models.config import DecoderConfig
from cohort.models.streaming.weight_ring import NUM_BUFFERS, spread_layers
from cohort.models.weight_formats import format_named
from cohort.tasks.task_file import TaskFile

__all__ = [
    "LINK_BYTES_PER_SECOND",
    "StreamedLayers",
    "available_host_bytes",
    "choose_streamed_layers",
    "layers_for_generation",
    "least_weight_bytes",
]

# page-locked host memory to a GPU over PCIe 5, as measured on an H100; slower links take longer
LINK_BYTES_PER_SECOND = 5.5e10
# a pass of fewer tokens computes for less time than its copies take, whatever the share of streamed layers
WANTED_TOKENS = 4096
# adapters of more trials are no reason to stream more layers
STATE_SHARE = 0.15


@dataclass(frozen=True, kw_only=True)
class StreamedLayers:
    """How many layers of a base model are streamed.

    Attributes:
        count: Streamed layers; 0 where all are resident.
        num_layers: All layers.
        layer_bytes: Weights of one layer's linears.
        base_bytes: Weights of the whole model.
        on_gpu: Whether the host's memory is not the device's.
    """

    count: int
    num_layers: int
    layer_bytes: int
    base_bytes: int
    on_gpu: bool

    @property
    def device_bytes(self) -> int:
        """Bytes of the base model on the device, the ring's buffers included."""
        if not self.on_gpu:
            return self.base_bytes + (NUM_BUFFERS * self.layer_bytes if self.count else 0)
        return self.base_bytes - max(0, self.count - NUM_BUFFERS) * self.layer_bytes

    @property
    def host_bytes(self) -> int:
        return self.count * self.layer_bytes

    @property
    def seconds_per_pass(self) -> float:
        """What the copies of a training pass take; hidden where the pass computes for longer."""
        return 2 * max(0, self.count - NUM_BUFFERS) * self.layer_bytes / LINK_BYTES_PER_SECOND

    @property
    def note(self) -> str | None:
        """Return one line for the user; None where nothing is streamed."""
        if not self.count:
            return None
        return (
            f"memory: {self.count} of {self.num_layers} layers ({format_bytes(self.host_bytes)}) stay in host memory "
            f"and are streamed through {NUM_BUFFERS} buffers (memory.host_streamed_layers)"
            + (f"; a pass that computes for less than {self.seconds_per_pass:.1f} s waits for the copies" * self.on_gpu)
        )

    @property
    def layers(self) -> tuple[int, ...]:
        return spread_layers(self.count, num_layers=self.num_layers)


def choose_streamed_layers(demand: Demand, *, host_bytes: int | None = None) -> StreamedLayers:
    """Return how many layers a task streams: what it asks for, or on a GPU the fewest with which it fits.

    Where it fits with no number of streamed layers, none is: the refusal names what the whole model takes.

    Args:
        host_bytes: Memory of the host that is free, where the layers will be; None where that is another machine.

    Raises:
        InputError: more layers than the model has or the host's memory holds, or of a model that transformers computes.
    """
    task, config = demand.task, demand.config
    resident = _all_resident(config, demand.machine)
    wanted = task.memory.host_streamed_layers
    if wanted not in ("auto", 0) and config.why_resident is not None:
        raise InputError(
            Problem(
                where=task.where("memory.host_streamed_layers"),
                found=f"{wanted} with {config.why_resident}",
                allowed="auto | 0 with this model: it is whole on its device",
                hint="Write host_streamed_layers: auto.",
            )
        )
    if wanted != "auto":
        found = replace(resident, count=wanted)
        _require_layers(task, found, host_bytes=host_bytes)
        return found
    if not demand.is_on_gpu or config.why_resident is not None:
        return resident
    free, ranks, row_bytes = demand.free_bytes, demand.rank_rows, demand.row_bytes
    room = free * (1 - task.memory.margin)
    needs = estimate_passes(config, dtype=demand.dtype, device=demand.machine.device)
    of_a_pass = needs.pass_bytes
    if task.memory.gradient_checkpointing != GradientCheckpointing.NEVER.value and needs.recomputed_bytes is not None:
        of_a_pass = needs.recomputed_bytes
    longest = demand.longest_group
    least = max(ranks) * row_bytes + of_a_pass(longest)
    if resident.base_bytes + least <= room:
        return resident
    roomy = max(max(ranks) * row_bytes, min(sum(ranks) * row_bytes, STATE_SHARE * free))
    roomy += of_a_pass(max(longest, WANTED_TOKENS))
    for other_bytes in (roomy, least):
        missing = resident.base_bytes + other_bytes - room
        count = max(NUM_BUFFERS + 1, NUM_BUFFERS + math.ceil(missing / resident.layer_bytes))
        if count <= resident.num_layers:
            found = replace(resident, count=count)
            _require_layers(task, found, host_bytes=host_bytes)
            return found
    return resident


def least_weight_bytes(task: TaskFile, config: DecoderConfig, machine: Machine) -> int:
    """Return the least bytes of the base model on the device, with as many layers streamed as the task allows."""
    resident = _all_resident(config, machine)
    wanted = task.memory.host_streamed_layers
    if wanted == "auto" or config.why_resident is not None:
        may_stream = config.why_resident is None and machine.device.type == "cuda" and resident.num_layers > NUM_BUFFERS
        wanted = resident.num_layers if may_stream else 0
    return replace(resident, count=min(wanted, resident.num_layers)).device_bytes


def layers_for_generation(config: DecoderConfig, machine: Machine) -> StreamedLayers:
    """Return how many layers are streamed where a finished adapter answers: a quarter of the GPU is left for that."""
    resident = _all_resident(config, machine)
    missing = resident.base_bytes - 0.75 * machine.memory_bytes
    fits = resident.base_bytes <= 0.9 * machine.memory_bytes
    if machine.device.type != "cuda" or fits or config.why_resident is not None:
        return resident
    count = max(NUM_BUFFERS + 1, NUM_BUFFERS + math.ceil(missing / resident.layer_bytes))
    return replace(resident, count=min(count, resident.num_layers))


def available_host_bytes() -> int | None:
    """Return the host's free memory; None where the system does not say."""
    return host_memory_bytes()[1] or None


def _all_resident(config: DecoderConfig, machine: Machine) -> StreamedLayers:
    dtype: torch.dtype = getattr(torch, machine.dtype)
    kept = format_named(machine.quantization)
    linears = sum(
        kept.tensor_bytes(piece.shape, dtype, is_linear=True)
        for fused in checkpoint_layout(config)
        if fused.is_linear
        for piece in fused.pieces
    )
    return StreamedLayers(
        count=0,
        num_layers=config.num_layers,
        layer_bytes=linears // config.num_layers,
        # a second copy of the weights, which some formats keep where there is room, is no reason to stream them
        base_bytes=counts.weight_bytes(config, dtype=dtype, weight_format=machine.quantization),
        on_gpu=machine.device.type == "cuda",
    )


def _require_layers(task: TaskFile, found: StreamedLayers, *, host_bytes: int | None) -> None:
    where = task.where("memory.host_streamed_layers")
    if found.count > found.num_layers:
        raise InputError(
            Problem(
                where=where,
                found=str(found.count),
                allowed=f"auto, 0, or {NUM_BUFFERS + 1} to {found.num_layers}, the model's layers",
                hint="Write host_streamed_layers: auto.",
            )
        )
    if host_bytes is not None and found.host_bytes > host_bytes:
        raise InputError(
            Problem(
                where=where,
                found=f"{found.count} layers in host memory, which take {format_bytes(found.host_bytes)}",
                allowed=f"what fits in the {format_bytes(host_bytes)} that the host has free",
                hint="Stream fewer layers, choose a smaller base model, or a host with more memory.",
            )
        )
