"""Where the frozen weights of the layers are: on every GPU, divided over the GPUs, or in host memory.

A whole copy on every GPU costs nothing in a pass, so it is chosen where it fits. Dividing layers over the GPUs costs
copies at the speed of their links, about 300 GB/s; streaming from host memory costs copies at 55 GB/s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from cohort.core.errors import InputError, Problem
from cohort.core.units import counted, format_bytes
from cohort.memory.demand import Demand
from cohort.memory.host_streaming import StreamedLayers, choose_streamed_layers
from cohort.models.streaming.weight_ring import NUM_BUFFERS, spread_layers
from cohort.ranks.rank_weights import RankWeights
from cohort.ranks.shared_bytes import can_share
from cohort.tasks.task_file import TaskFile

__all__ = ["WeightPlacement", "choose_placement", "placement_problems"]


_SEVERAL_HOSTS = "ranks on several hosts cannot read each other's memory"


@dataclass(frozen=True, kw_only=True)
class WeightPlacement:
    """Where the weights of the layers are.

    Attributes:
        weights: What every rank's loader gets.
        device_bytes: Bytes of the base model on each device.
        seconds_per_pass: What the copies of a training pass take, where they come from the host.
        note: One line for the user; None where every rank has a whole copy and nothing else was asked for.
    """

    weights: RankWeights
    device_bytes: int
    seconds_per_pass: float = 0.0
    note: str | None = None


def choose_placement(demand: Demand, *, host_bytes: int | None = None, num_hosts: int = 1) -> WeightPlacement:
    """Return where the weights of a task's layers are.

    Args:
        host_bytes: As of :func:`choose_streamed_layers`, for all ranks.
        num_hosts: Machines that the ranks are on.

    Raises:
        InputError: a number of streamed layers together with a strategy that divides them; and as
            :func:`choose_streamed_layers`.
    """
    task, config, num_ranks = demand.task, demand.config, demand.num_ranks
    if problems := list(placement_problems(task)):
        raise InputError(problems)
    wanted = task.memory.host_streamed_layers
    # each rank keeps a copy of its own of what is streamed
    own_bytes = None if host_bytes is None else host_bytes // num_ranks
    # without the host's limit: layers that are divided take none of its memory
    streamed = choose_streamed_layers(demand)
    divides = task.strategy == "adapter_parallel" or (
        task.strategy == "auto" and wanted == "auto" and streamed.count > 0
    )
    why = None
    if divides and num_ranks > 1 and config.why_resident is None and streamed.num_layers > NUM_BUFFERS:
        why = can_share(demand.machine.device, num_ranks=num_ranks) if num_hosts == 1 else _SEVERAL_HOSTS
        if why is None:
            return _divided(streamed, num_ranks=num_ranks, all_layers=task.strategy == "adapter_parallel")
    elif task.strategy == "adapter_parallel" and config.why_resident is not None:
        why = f"{config.why_resident} and are whole on each GPU"
    elif task.strategy == "adapter_parallel":
        only = "one GPU" if num_ranks == 1 else f"a model of {counted(streamed.num_layers, 'layer')}"
        why = f"{only} divides nothing"
    streamed = choose_streamed_layers(demand, host_bytes=own_bytes)
    note = streamed.note
    if why is not None and divides:
        instead = "layers are streamed from host memory" if streamed.count else "every GPU has the whole model"
        note = f"strategy: {why}, so {instead}" + (f"; {note}" if note else "")
    return WeightPlacement(
        weights=RankWeights(layers=streamed.layers, num_ranks=num_ranks),
        device_bytes=streamed.device_bytes,
        seconds_per_pass=streamed.seconds_per_pass,
        note=note,
    )


def placement_problems(task: TaskFile) -> Iterator[Problem]:
    """Yield what of a task contradicts its strategy, whatever it trains on."""
    wanted = task.memory.host_streamed_layers
    if task.strategy == "adapter_parallel" and wanted not in ("auto", 0):
        yield Problem(
            where=task.where("memory.host_streamed_layers"),
            found=f"{wanted} with strategy: adapter_parallel, which divides the layers over the GPUs",
            allowed="auto | 0 with this strategy",
            hint="Remove one of both keys.",
        )


def _divided(streamed: StreamedLayers, *, num_ranks: int, all_layers: bool) -> WeightPlacement:
    """Return the placement with as few layers divided as free the bytes that streaming would, or with all."""
    missing = streamed.base_bytes - streamed.device_bytes
    freed_by_each = streamed.layer_bytes * (1 - 1 / num_ranks)
    least = math.ceil((missing + NUM_BUFFERS * streamed.layer_bytes) / freed_by_each)
    count = streamed.num_layers if all_layers else min(max(least, NUM_BUFFERS + 1), streamed.num_layers)
    buffers = NUM_BUFFERS * streamed.layer_bytes
    each = streamed.base_bytes - math.floor(count * freed_by_each) + buffers
    layers = spread_layers(count, num_layers=streamed.num_layers)
    return WeightPlacement(
        weights=RankWeights(layers=layers, num_ranks=num_ranks, are_divided=True),
        device_bytes=each,
        note=f"strategy: adapter_parallel; {count} of {streamed.num_layers} layers are divided over "
        f"{num_ranks} processes; each holds {format_bytes(each)} of the base model and copies layers from the others",
    )
