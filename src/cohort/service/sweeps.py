"""Opens the sweeps of a server: tasks of a queue that train on the base model that is served, next to requests."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import torch

from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import CohortError, InputError, Problem
from cohort.core.source_location import Place
from cohort.engine.resident.memory_division import MemoryBudget, MemoryWishes, divide_memory
from cohort.engine.resident.pass_speed import tokens_within
from cohort.engine.resident.resident_base import ResidentBase
from cohort.engine.resident.sweeps import Sweeps
from cohort.engine.turns.base_turns import BaseTurns
from cohort.machine.machine import Machine, free_memory_bytes
from cohort.machine.thread_count import settle_thread_count
from cohort.memory.budget import Sizes
from cohort.memory.pass_estimates import estimate_passes
from cohort.memory.size_inputs import rank_row_bytes
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config import DecoderConfig
from cohort.models.counts import weight_bytes
from cohort.models.decoder import Decoder
from cohort.runs.directory import RunDirectory
from cohort.scheduling.admission import Capacity
from cohort.scheduling.shares.records import ShareSettings
from cohort.scheduling.shares.turns import TurnTaker
from cohort.service.settings import ServedSettings
from cohort.serving.adapter_pool import AdapterPool
from cohort.serving.kv_blocks import KvBlocks, blocks_for
from cohort.task_queue.resident_queue import ResidentQueue, require_queue
from cohort.training.executor_settings import ExecutorSettings

__all__ = [
    "ServedSweeps",
    "base_notes",
    "open_shared_base",
    "open_sweeps",
    "open_turns",
    "plan_sweeps",
    "require_sweeps",
    "settle_threads",
]

_log = logging.getLogger(__name__)

WHERE = Place(option="command line --queue")
_CPU_CACHE_BYTES = 1 << 30
# of a device's steps: what fills a CPU core, and a GPU
_STEP_TOKENS = {"cpu": 2048, "cuda": 16384}
# of a pass, which is one part of a step
_PASS_TOKENS = {"cpu": 2048, "cuda": 8192}


class ServedSweeps:
    """The queue of a server, whose finished tasks are served by their names."""

    def __init__(self, queue: ResidentQueue, pool: AdapterPool) -> None:
        self._queue, self._pool = queue, pool

    def start(self) -> None:
        """Serve what is done already, and train what waits."""
        for name, run in self._queue.done():
            serve_finished(self._pool, name, run)
        self._queue.start()

    def close(self) -> None:
        """Have all tasks save their states."""
        self._queue.close()

    @property
    def directory(self) -> Path:
        return self._queue.directory


def require_sweeps(settings: ServedSettings) -> None:
    """Check a server's sweeps before anything is loaded.

    Raises:
        InputError: the model would be divided, or the queue cannot be worked off.
    """
    if settings.queue is None and not settings.trains_tasks:
        return
    if settings.tensor_parallel_size > 1:
        raise InputError(
            Problem(
                where=WHERE,
                found=f"--queue with --tensor-parallel-size {settings.tensor_parallel_size}",
                allowed="--queue with a model on one device",
                hint="Leave --tensor-parallel-size out.",
            )
        )
    if settings.queue is not None:
        require_queue(settings.queue, where=WHERE)


def settle_threads(settings: ServedSettings, directory: Path, *, on_cpu: bool) -> None:
    """Compute with as many CPU threads as a sweep alone would: they are a part of its bits."""
    if settings.queue is not None or settings.trains_tasks:
        settle_thread_count(str(directory), on_cpu=on_cpu)


def open_turns(settings: ServedSettings) -> BaseTurns:
    """Return who decides which use of the base model computes next."""
    shares = ShareSettings(max_pass_seconds=settings.max_pass_seconds)
    return BaseTurns(TurnTaker(settings=shares), max_pass_seconds=settings.max_pass_seconds)


def plan_sweeps(settings: ServedSettings, config: DecoderConfig, machine: Machine) -> MemoryBudget | None:
    """Divide the memory of the device before anything is loaded; None without sweeps.

    Raises:
        InputError: it does not hold all that was asked for.
    """
    if settings.queue is None and not settings.trains_tasks:
        return None
    computed: torch.dtype = getattr(torch, machine.dtype)
    device, layout = machine.device, AdapterLayout(linear_shapes(config))
    has_copy = computed is not torch.float32
    row_bytes = rank_row_bytes(layout, has_compute_copy=has_copy)
    rank = aligned_rank(settings.pool.max_lora_rank)
    free = free_memory_bytes(device)
    needs = estimate_passes(config, dtype=computed, device=device)
    longest = config.max_position_embeddings
    longest = longest if settings.max_model_len is None else min(longest, settings.max_model_len)
    block = KvBlocks.block_bytes(config, dtype=computed)
    # more than all sequences at their longest is never used
    most_cache = settings.scheduler.max_num_seqs * blocks_for(longest) * block
    cache = min(most_cache, _CPU_CACHE_BYTES) if device.type == "cpu" else most_cache
    return divide_memory(
        MemoryWishes(
            free_bytes=free,
            base_bytes=weight_bytes(config, dtype=computed, weight_format=machine.quantization),
            pass_bytes=int(needs.pass_bytes(_tokens_of_pass(config, device.type))),
            served_bytes=settings.pool.num_rank_rows * layout.width * computed.itemsize,
            client_bytes=0 if settings.tinker is None else settings.max_trained_models * rank * row_bytes,
            cache_bytes=cache if settings.cache_bytes is None else settings.cache_bytes,
            is_cache_asked=settings.cache_bytes is not None,
            least_cache_bytes=block,
            row_bytes=row_bytes,
            num_slots=settings.max_sweep_trials,
            rank=rank,
        ),
        where=WHERE,
    )


def open_shared_base(
    settings: ServedSettings,
    budget: MemoryBudget,
    *,
    decoder: Decoder,
    directory: Path,
    machine: Machine,
    turns: BaseTurns,
) -> ResidentBase:
    """Return a model that is loaded and served, for tasks that train on it.

    Args:
        directory: The model's files.
        machine: Where it computes, by the number of threads of this process.
        turns: Those of the thread that serves.
    """
    most = _tokens_of_pass(decoder.config, machine.device.type)
    tokens = tokens_within(decoder, settings.max_pass_seconds, most=most)
    sizes = Sizes(
        executor=ExecutorSettings(
            num_slots=settings.max_sweep_trials,
            num_rank_rows=budget.rank_rows,
            token_budget=tokens,
            evaluation_token_budget=tokens,
            numerics=machine.numerics,
        ),
        capacity=Capacity(
            rank_rows=budget.rank_rows,
            num_slots=settings.max_sweep_trials,
            tokens_per_step=max(most, _STEP_TOKENS[machine.device.type]),
        ),
    )
    return ResidentBase(
        decoder=decoder,
        directory=directory,
        machine=replace(machine, memory_bytes=budget.sweep_bytes + budget.wishes.pass_bytes),
        sizes=sizes,
        turns=turns,
    )


def open_sweeps(queue: Path, base: ResidentBase, *, pool: AdapterPool) -> ServedSweeps:
    """Return the sweeps of a queue, not yet started; ``pool`` serves those that are finished."""

    def finished(name: str, run: Path) -> None:
        serve_finished(pool, name, run)

    return ServedSweeps(ResidentQueue(queue, Sweeps(base), on_done=finished), pool)


def base_notes(base: ResidentBase, budget: MemoryBudget) -> tuple[str, ...]:
    """Return what to say of a base that is shared."""
    ms, tokens = 1000 * base.turns.max_pass_seconds, base.sizes.executor.token_budget
    return (budget.note, f"sweeps give way to requests after {ms:.0f} ms: passes have up to {tokens:,} tokens")


def serve_finished(pool: AdapterPool, name: str, run: Path) -> None:
    """Serve the best adapter of a finished task by the task's name, unless that is another's."""
    best = RunDirectory(run).best
    if not best.is_dir():
        return
    try:
        pool.load(name, best)
    except CohortError as error:
        # the run has it in any case; a name that is taken is no reason to end the server
        _log.warning("task %s is done, but its adapter is not served: %s", name, error)


def _tokens_of_pass(config: DecoderConfig, device_type: str) -> int:
    # a row stands in one pass, however long it is
    return max(_PASS_TOKENS[device_type], min(config.max_position_embeddings, 4 * _PASS_TOKENS[device_type]))
