"""Plans the memory of a run: how much of the device it may use, and how much of that its passes need.

The story of this room: :mod:`smallest_memory` says whether a task can fit at all, :mod:`profile` measures passes before
training, :mod:`budget` turns bytes into slots, rank rows and tokens, and :mod:`watch` corrects the figures while
training runs.
The formula that predicts the peak of a pass is fitted in :mod:`cohort.scheduling.pass_memory`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from cohort.core.clock import Clock
from cohort.core.errors import InputError
from cohort.core.memory_records import GradientCheckpointing
from cohort.core.units import format_bytes
from cohort.machine.devices import hardware_of
from cohort.machine.machine import Machine, free_memory_bytes
from cohort.machine.measurements import CostKey, MemoryKey, forget_passes, read_passes, write_passes
from cohort.memory.budget import CPU_SIZES, GPU_TOKENS, Sizes
from cohort.memory.demand import Demand
from cohort.memory.pass_estimates import estimate_passes
from cohort.memory.profile import MemoryProfile, profile_memory
from cohort.memory.size_inputs import SizeRequest
from cohort.memory.smallest_memory import limit_problem, sizes_within
from cohort.models.decoder import Decoder
from cohort.ranks.peer_source import has_parts
from cohort.ranks.rank_weights import ALL_RESIDENT, RankWeights
from cohort.runs.fact_groups import MemoryFacts
from cohort.scheduling.pass_sizes import MemoryNeeds
from cohort.tasks.task_file import TaskFile
from cohort.training.device_memory import release_cached
from cohort.training.objectives import DEFAULT_OBJECTIVE

__all__ = ["MemoryPlan", "plan_memory"]

# of a GPU for the contexts of two processes: the one that trains there, and rank 0, which opens its states
CONTEXT_BYTES = 1 << 30
# of a loaded model, in addition to its weights and their spare columns (below 1 %): tables of positions, workspaces
SLACK_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """The memory of a run, and what its passes take.

    Attributes:
        machine: Its memory is what there is for adapters and passes.
        needs: What passes take; None on a CPU without a limit.
        profile: The measured passes; None where none were.
        limit_bytes: The task's limit; None for all there is.
        base_bytes: What the base model takes.
        key: Under which the profile is kept for the next run; None without one.
    """

    machine: Machine
    needs: MemoryNeeds | None
    profile: MemoryProfile | None
    limit_bytes: int | None
    base_bytes: int = 0
    key: MemoryKey | None = None

    def facts(self, weights: RankWeights = ALL_RESIDENT) -> MemoryFacts:
        """Return what is recorded about the memory, and about where the weights of layers are."""
        needs, profile = self.needs, self.profile
        streamed = len(weights.layers) or None
        return MemoryFacts(
            available_bytes=self.machine.memory_bytes,
            limit_bytes=self.limit_bytes,
            margin_share=None if needs is None else needs.margin_share,
            reserve_bytes=None if needs is None else needs.reserve_bytes,
            of_a_pass=None if needs is None else "estimated" if profile is None else "measured",
            profile_passes=None if profile is None else profile.num_passes,
            profile_seconds=None if profile is None else profile.seconds,
            profile_error_percent=None if profile is None else profile.fit_error_percent,
            profile_largest_tokens=None if profile is None else profile.largest_tokens,
            host_streamed_layers=None if weights.are_divided else streamed,
            divided_layers=streamed if weights.are_divided else None,
        )

    def note(self) -> str | None:
        """Return one line about what was measured; None if nothing was."""
        if self.profile is None:
            return None
        measured = f"{self.profile.num_passes} passes measured in {self.profile.seconds:.1f} s"
        if not self.profile.num_passes:
            measured = "passes were measured by an earlier run"
        return (
            f"memory: {measured}, predicted within {self.profile.fit_error_percent:.1f} %; passes of up to "
            f"{self.profile.largest_tokens:,} tokens fit in {format_bytes(self.machine.memory_bytes)}"
        )

    def sizes(self, demand: Demand, *, request: SizeRequest | None = None) -> Sizes:
        """Return the sizes of a task in this memory; its own machine is not read.

        Raises:
            InputError: it does not fit.
        """
        machine = self.machine
        return sizes_within(
            demand.task,
            replace(demand, machine=machine).size_inputs(needs=self.needs, request=request),
            free_bytes=machine.memory_bytes,
            base_bytes=self.base_bytes,
            there_bytes=free_memory_bytes(machine.device) + self.base_bytes,
            is_measured=self.profile is not None,
        )

    def forget_profile(self) -> None:
        if self.key is not None:
            forget_passes(self.key)


def plan_memory(demand: Demand, *, decoder: Decoder, clock: Clock, say: Callable[[str], None]) -> MemoryPlan:
    """Find how much memory there is with the base model loaded, and what passes take of it.

    Args:
        demand: The free memory of its machine is read again.

    Raises:
        InputError: the base model alone takes the whole limit.
    """
    task, machine, rows, on_gpu = demand.task, demand.machine, demand.rows, demand.is_on_gpu
    limit = task.memory.limit
    machine = replace(machine, memory_bytes=_available(task, decoder, num_gpus=machine.num_gpus))
    if not on_gpu and limit is None:
        # sizes take a share of the free memory then (BANK_SHARE), and no pass needs to be measured
        return MemoryPlan(machine=machine, needs=None, profile=None, limit_bytes=None, base_bytes=_taken(decoder))
    objective = demand.specs[0].objective
    # a prompt is trained with the answers that are drawn to it, whose tokens then are targets as in any other row
    lengths = np.minimum(rows.lengths + demand.drawn_tokens, max(demand.longest_group, 1))
    objective = DEFAULT_OBJECTIVE if objective.samples_answers else objective
    # what passes take follows from the rows that their products read; the state has those of whole modules as well
    ranks = [spec.adapter.num_rows_in_passes for spec in demand.specs]
    state_bytes = max(demand.rank_rows) * demand.row_bytes
    profile = key = None
    # where not even the state fits, choosing sizes refuses the task with a hint, and nothing could be measured
    if task.memory.profile and state_bytes < machine.memory_bytes:
        say("measuring the memory of passes")
        # tasks of a queue that agree in these measure once (docs/decisions/0014); rows that are compared share a pass
        longest_group = demand.longest_group
        key = _key(demand, decoder=decoder, ranks=ranks)
        profile = profile_memory(
            decoder,
            layout=demand.layout,
            ranks=ranks,
            usual=round(float(lengths.mean())),
            longest=int(lengths.max()),
            longest_group=longest_group,
            room_bytes=machine.memory_bytes * (1 - task.memory.margin) - state_bytes,
            most_tokens=max((GPU_TOKENS if on_gpu else CPU_SIZES)[0], longest_group),
            memory_limit_bytes=None if on_gpu else limit,
            known=read_passes(key),
            gradient_checkpointing=GradientCheckpointing(task.memory.gradient_checkpointing),
            objective=objective,
            numerics=machine.numerics,
            clock=clock.monotonic,
        )
        if profile is not None and profile.num_passes:
            write_passes(key, profile.passes)
        # passes that launch no product have not made the BLAS take its workspace
        _have_workspaces_taken(decoder.device)
        machine = replace(machine, memory_bytes=_available(task, decoder, num_gpus=machine.num_gpus))
    if profile is None:
        needs = estimate_passes(decoder.config, dtype=decoder.dtype, device=decoder.device)
        needs = replace(needs, margin_share=task.memory.margin)
    else:
        needs = profile.needs(margin_share=task.memory.margin)
    if decoder.ring is not None and not decoder.ring.source.is_recordable:
        needs = replace(needs, graph_bytes=lambda tokens: math.inf if tokens else 0.0)
    return MemoryPlan(
        machine=machine, needs=needs, profile=profile, limit_bytes=limit, base_bytes=_taken(decoder), key=key
    )


def _key(demand: Demand, *, decoder: Decoder, ranks: Sequence[int]) -> MemoryKey:
    cost = CostKey.of(
        decoder.config,
        hardware=hardware_of(demand.machine).name,
        precision=demand.machine.precision,
        mean_length=float(demand.rows.lengths.mean()),
        target_modules=demand.layout.targets,
    )
    return MemoryKey.of(cost, ranks=ranks, longest=demand.longest_group)


def _available(task: TaskFile, decoder: Decoder, *, num_gpus: int = 1) -> int:
    """Return the bytes for adapters and passes, on the fullest of several GPUs, and set the limit of the allocator."""
    limit, device = task.memory.limit, decoder.device
    # Garbage of a task before may hold memory of the device. To look for it takes a third of a second: not where all
    # that is taken are the weights.
    if device.type == "cuda" and _taken(decoder) > 1.01 * decoder.num_bytes + SLACK_BYTES:
        release_cached(device)
    elif device.type == "cuda":
        torch.cuda.empty_cache()
    taken = _taken(decoder)
    # the others have no weights yet, nor what CUDA takes for their process and for this one
    contexts = CONTEXT_BYTES
    if has_parts(decoder):
        # every process reads the memory of every GPU
        contexts = max(CONTEXT_BYTES, num_gpus * CONTEXT_BYTES // 2)
    others = [free_memory_bytes(torch.device("cuda", gpu)) - taken - contexts for gpu in range(1, num_gpus)]
    own = free_memory_bytes(device) - (contexts if has_parts(decoder) and device.type == "cuda" else 0)
    free = min([own, *others])
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        # set without a limit too: the task before in the same worker process may have had one
        torch.cuda.set_per_process_memory_fraction(1.0 if limit is None else min(1.0, limit / total), device)
    if limit is None:
        return free
    if (problem := limit_problem(task, base_bytes=taken)) is not None:
        raise InputError(problem)
    return min(free, limit - taken)


def _have_workspaces_taken(device: torch.device) -> None:
    if device.type == "cuda":
        # one for this thread, and one for that of backward passes
        square = torch.ones(16, 16, device=device, dtype=torch.bfloat16, requires_grad=True)
        (square @ square).sum().backward()


def _taken(decoder: Decoder) -> int:
    # on a GPU also what other tensors of this process take, which no adapter can have
    is_gpu = decoder.device.type == "cuda"
    return torch.cuda.memory_allocated(decoder.device) if is_gpu else decoder.num_bytes
