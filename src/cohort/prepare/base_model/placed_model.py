"""Loads the base model of a task where its strategy wants it, or leaves that to the ranks, and plans the memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from cohort.core.cache_directory import default_cache_directory
from cohort.core.clock import Clock
from cohort.core.errors import InputError
from cohort.core.process.daemon_thread import begin_in_thread
from cohort.machine.compile_ahead.launched_model import launched_model
from cohort.machine.compile_ahead.task_kernels import KernelWarmUp
from cohort.machine.compile_ahead.workers import KernelCompiler
from cohort.machine.machine import free_memory_bytes
from cohort.memory.budget import Sizes
from cohort.memory.demand import Demand
from cohort.memory.host_streaming import available_host_bytes
from cohort.memory.model_place import choose_model_place
from cohort.memory.plan import MemoryPlan, plan_memory
from cohort.memory.size_inputs import SizeRequest
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.prepare.base_model.kernels_ahead import KernelsAhead
from cohort.prepare.base_model.weights_ahead import WeightsAhead, has_room_to_load, on_same_gpu
from cohort.ranks.rank_group import RankGroupPlan
from cohort.ranks.rank_weights import ALL_RESIDENT, RankWeights

__all__ = ["PlacedModel", "place_model"]


@dataclass(frozen=True, kw_only=True)
class PlacedModel:
    """Where the frozen model is, and the memory next to it.

    Attributes:
        demand: What the task wants; its adapted linears are those that a rank's bank holds.
        decoder: The model; None where ranks that hold it together load it.
        memory: The memory that the sizes fit in.
        weights: Which layers are not resident, and where their weights are.
        group: How ranks hold the model together; None where each has a whole one, or parts of layers.
        notes: For the user; none where every rank has a whole copy.
        loaded_at: When the weights were there, by the clock.
    """

    demand: Demand
    decoder: Decoder | None
    memory: MemoryPlan
    weights: RankWeights = ALL_RESIDENT
    group: RankGroupPlan | None = None
    notes: tuple[str, ...] = ()
    loaded_at: float = 0.0

    @property
    def group_name(self) -> str | None:
        """What a task file calls the strategy of the group; None without one."""
        return None if self.group is None else self.group.name

    def num_ranks(self, sizes: Sizes) -> int:
        """Return the processes that train with ``sizes``."""
        return sizes.capacity.num_ranks if self.group is None else self.group.size

    def sizes(self, request: SizeRequest | None) -> Sizes:
        """Return the sizes of the executor.

        Raises:
            InputError: the task does not fit.
        """
        if self.group is not None:
            # all ranks hold every trial together: one bank for admission
            request = replace(request or SizeRequest(), num_ranks=1)
        # of a group those of its fullest rank: each keeps its own part of a parked state, next to its bank
        return self.memory.sizes(self.demand, request=request)


def place_model(
    demand: Demand,
    model_directory: Path,
    *,
    request: SizeRequest,
    clock: Clock,
    say: Callable[[str], None],
    workers: KernelCompiler | None = None,
    ahead: WeightsAhead | None = None,
    collected: KernelsAhead | None = None,
) -> PlacedModel:
    """Load the model of a task, unless a group of ranks does, and plan its memory.

    Args:
        request: Processes that a launcher has started, and what a resumed run began with.
        workers: Those that compile, where they were started already.
        ahead: What may have begun to load the model.
        collected: What may have collected its kernels.

    Raises:
        InputError: anything wrong with its files, too little memory, or what the strategy does not support.
    """
    launched = request.launched
    place = choose_model_place(
        demand,
        host_bytes=available_host_bytes(),
        num_hosts=1 if launched is None else launched.num_hosts,
        began_with=request.began_with,
    )
    decoder = None
    model = launched_model(place.group, config=demand.config, layout=demand.layout)
    kernels = KernelWarmUp(
        demand.machine,
        model=model,
        adapters=[spec.adapter for spec in demand.specs],
        mean_length=float(demand.rows.lengths.mean()),
        say=say,
        workers=workers,
        early=None if collected is None else collected.kernels,
    )
    # a model of which layers are streamed, or which ranks share, is another one than was begun
    is_whole = place.group is None and place.weights == ALL_RESIDENT
    begun = ahead.take(model_directory, demand.machine, is_wanted=is_whole) if ahead is not None else None
    if place.group is not None and place.held is not None:
        # every rank is a process of its own, which loads its part, and finds the kernels compiled
        with kernels:
            kernels.begin()
            kernels.finish(None)
        loaded_at = clock.monotonic()
        memory = place.held.plan(demand, num_gpus=request.ranks_here or place.group.size)
    else:
        with kernels:
            decoder = _load(demand, model_directory, place.weights, kernels=kernels, begun=begun)
            loaded_at = clock.monotonic()
            # what passes take is bytes, and no time of theirs
            with kernels.measuring(decoder, demand.specs[0].objective):
                memory = plan_memory(demand, decoder=decoder, clock=clock, say=say)
    return PlacedModel(
        demand=replace(demand, layout=place.layout),
        decoder=decoder,
        memory=memory,
        weights=place.weights,
        group=place.group,
        notes=place.notes,
        loaded_at=loaded_at,
    )


def _load(
    demand: Demand,
    model_directory: Path,
    weights: RankWeights,
    *,
    kernels: KernelWarmUp,
    begun: Future[Decoder] | None,
) -> Decoder:
    """Return the base model, and have its kernels collected; ``begun`` is what a thread is loading already."""
    task, machine = demand.task, demand.machine
    streaming = weights.streaming(machine.device, rank=0)
    load = functools.partial(
        load_decoder,
        model_directory,
        dtype=machine.dtype,
        device=machine.device,
        streaming=streaming,
        weight_format=machine.quantization,
        cache_directory=default_cache_directory(),
        room_bytes=task.memory.limit,
    )
    try:
        if begun is None and kernels.collects_first and streaming is None and _has_room_for_both(demand):
            begun = begin_in_thread("cohort-loading", on_same_gpu(load, machine.device))
        if begun is not None:
            # to collect kernels, or to load them, is work of the interpreter; to load weights hardly any
            kernels.begin()
            kernels.load(is_enough=begun.done)
            decoder = begun.result()
        else:
            kernels.begin()
            decoder = load()
    except InputError as error:
        raise error.about([task.located(problem) for problem in error.problems]) from error
    return decoder


def _has_room_for_both(demand: Demand) -> bool:
    there_bytes = free_memory_bytes(demand.machine.device)
    return has_room_to_load(demand.task, demand.config, demand.machine, there_bytes=there_bytes)
