"""The schedule of a pipeline: which samples of which adapters pass it together, and in what order.

Adapters are grouped, short rows with long ones, and the groups run in a strict order, batch after batch, so that other
groups' micro-batches stand between two batches of an adapter. Each group's batch is packed; samples of the next one
fill what its last micro-batch leaves; a last pass puts no-ops where the bubble lemma still asks for them.

With one stage there is nothing to keep apart but an adapter's own batches: all adapters are one group, and the schedule
is plain packing without a no-op.

Source: LoRAFusion 4.2.2.
"""

from __future__ import annotations

import importlib
import math
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace

from cohort.scheduling.pipelines.microbatch.level_packing import level_pack
from cohort.scheduling.pipelines.microbatch.merging import merge_batches
from cohort.scheduling.pipelines.microbatch.ordered_packing import ordered_pack
from cohort.scheduling.pipelines.microbatch.packing import Bins, PackingLimits, first_fit_decreasing
from cohort.scheduling.pipelines.microbatch.records import (
    AdapterBatches,
    MicroBatch,
    PipelineSample,
    with_no_ops,
)

__all__ = [
    "MicroBatchSettings",
    "choose_schedule",
    "few_groups",
    "group_adapters",
    "least_capacity",
    "pipeline_seconds",
    "schedule_micro_batches",
]


@dataclass(frozen=True, kw_only=True)
class MicroBatchSettings:
    """How micro-batches are made.

    Attributes:
        capacity: Most padded tokens of one.
        multiple: What each adapter's tokens in a micro-batch are padded to.
        limits: When each packing's integer programs stop.
        num_processes: Packings at the same time; the result does not depend on it.
        is_level: Make the micro-batches of a batch equally long instead of leaving the last one empty for the next.
        keeps_order: Let the samples of each adapter pass in their order, in which its gradient is summed.
        uses_solver: Pack by integer programs. Without them first-fit decreasing, or what is level or in order, is the
            answer.
    """

    capacity: int
    stages: int = 1
    multiple: int = 1
    limits: PackingLimits = field(default_factory=PackingLimits)
    num_processes: int = 1
    is_level: bool = False
    keeps_order: bool = False
    uses_solver: bool = False

    def __post_init__(self) -> None:
        if min(self.capacity, self.stages, self.multiple, self.num_processes) < 1:
            raise ValueError(f"capacity, stages, multiple and processes must be at least 1, but these are {self}")


def group_adapters(adapters: Sequence[AdapterBatches], *, settings: MicroBatchSettings) -> tuple[tuple[int, ...], ...]:
    """Return groups of adapters, in their order of execution.

    Sorted by mean length, head and tail are paired, as long as the micro-batches of the other groups are enough to
    stand between two batches of each; the rest stays alone.
    """
    order = sorted(adapters, key=lambda adapter: (adapter.mean_length, adapter.adapter))
    if settings.stages == 1:
        return (tuple(adapter.adapter for adapter in order),) if order else ()
    tokens = {
        adapter.adapter: max((sum(batch) for batch in adapter.lengths), default=0) for adapter in order
    }  # the estimate of a batch: its largest

    def micro_batches(group: Sequence[int]) -> int:
        return math.ceil(sum(tokens[adapter] for adapter in group) / settings.capacity)

    # Short rows with long ones: LoRAFusion's head-tail pairing (4.2.2).
    groups: list[tuple[int, ...]] = [(adapter.adapter,) for adapter in order]
    head, tail = 0, len(order) - 1
    while head < tail:
        pair = (order[head].adapter, order[tail].adapter)
        paired = [group for group in groups if not set(group) & set(pair)] + [pair]
        total = sum(map(micro_batches, paired))
        if all(total - micro_batches(group) >= settings.stages - 1 for group in paired):
            groups = paired
        head, tail = head + 1, tail - 1
    return tuple(sorted(groups))


def few_groups(
    adapters: Sequence[AdapterBatches], *, settings: MicroBatchSettings
) -> list[tuple[tuple[int, ...], ...]]:
    """Return partitions of the adapters into fewer groups than pairs, of about as many tokens each.

    Pairs of adapters with small batches make micro-batches that are smaller than what hides their launches. As many
    groups as stages, or a few more, fill the pipeline with the largest ones.
    """
    tokens = {adapter.adapter: max((sum(batch) for batch in adapter.lengths), default=0) for adapter in adapters}
    found = []
    for count in sorted({settings.stages, settings.stages + 1, 2 * settings.stages}):
        if count >= math.ceil(len(tokens) / 2):
            break
        groups: list[list[int]] = [[] for _ in range(count)]
        for adapter in sorted(tokens, key=lambda adapter: (-tokens[adapter], adapter)):
            min(groups, key=lambda group: sum(tokens[other] for other in group)).append(adapter)
        found.append(tuple(tuple(sorted(group)) for group in groups))
    return found


def schedule_micro_batches(
    adapters: Sequence[AdapterBatches], *, settings: MicroBatchSettings, groups: Sequence[Sequence[int]] | None = None
) -> tuple[MicroBatch, ...]:
    """Return micro-batches in their order of execution; the bubble lemma holds for them.

    Args:
        groups: Of :func:`group_adapters` when None.

    Raises:
        ValueError: a sample is longer than the capacity, or the groups are not a partition of the adapters.
    """
    groups = groups if groups is not None else group_adapters(adapters, settings=settings)
    by_id = {adapter.adapter: adapter for adapter in adapters}
    if sorted(a for group in groups for a in group) != sorted(by_id):
        raise ValueError(f"every adapter stands in one group, but the groups are {groups}")
    num_batches = max((len(adapter.lengths) for adapter in adapters), default=0)
    units = [
        [sample for adapter in group for sample in by_id[adapter].samples(batch)]
        for batch in range(num_batches)
        for group in groups
    ]
    packed = [[list(own) for own in bins] for bins in _pack_all([unit for unit in units if unit], settings)]
    if not settings.is_level:
        merge_batches(
            packed,
            capacity=settings.capacity,
            stages=settings.stages,
            multiple=settings.multiple,
            keeps_order=settings.keeps_order,
        )
    flat = [MicroBatch(tuple(own)) for bins in packed for own in bins]
    return with_no_ops(flat, stages=settings.stages)


def _pack_all(units: Sequence[list[PipelineSample]], settings: MicroBatchSettings) -> list[list[list[PipelineSample]]]:
    plain = replace(settings, num_processes=1)
    if settings.num_processes == 1 or len(units) < 2:
        return [_pack((unit, plain)) for unit in units]
    # a fresh interpreter each: forking a process that holds a GPU or threads is not safe
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(settings.num_processes, mp_context=context) as pool:
        return list(pool.map(_pack, [(unit, plain) for unit in units], chunksize=max(1, len(units) // 64)))


def _pack(job: tuple[list[PipelineSample], MicroBatchSettings]) -> list[list[PipelineSample]]:
    unit, settings = job
    sizes = {"capacity": settings.capacity, "multiple": settings.multiple}
    if not settings.uses_solver:
        if settings.keeps_order:
            return ordered_pack(unit, **sizes)
        return level_pack(unit, **sizes) if settings.is_level else first_fit_decreasing(unit, **sizes)
    # its library is large, and missing where a pipeline only trains
    name = "ordered_solver" if settings.keeps_order else "solver_packing"
    solver = importlib.import_module(f"cohort.scheduling.pipelines.microbatch.{name}")
    pack = solver.pack_in_order if settings.keeps_order else solver.pack_samples
    bins: Bins = pack(unit, **sizes, is_level=settings.is_level, limits=settings.limits)
    return bins


def least_capacity(
    throughput: Mapping[int, float], *, longest_sample: int, most_tokens: int, share: float = 0.95
) -> int:
    """Return the least measured tokens that reach ``share`` of the best throughput, hold the longest sample and fit.

    Args:
        throughput: Tokens a second by tokens of a micro-batch, measured.

    Raises:
        ValueError: nothing was measured between the longest sample and what fits.
    """
    allowed = {tokens: rate for tokens, rate in throughput.items() if longest_sample <= tokens <= most_tokens}
    if not allowed:
        raise ValueError(f"no measured micro-batch holds {longest_sample} tokens and fits in {most_tokens}")
    return min(tokens for tokens, rate in allowed.items() if rate >= share * max(allowed.values()))


def pipeline_seconds(
    schedule: Sequence[MicroBatch], *, stages: int, multiple: int, seconds_of: Callable[[int], float]
) -> float:
    """Return the seconds of a schedule on equal stages, communication hidden.

    A micro-batch takes each stage its seconds over the stages; where all stages take a micro-batch equally long, the
    last leaves after the sum of all times on one stage and the longest one on every other.

    Args:
        schedule: Micro-batches; a no-op costs what ``seconds_of(0)`` says.
        seconds_of: Forward and backward of a micro-batch over all stages, by its tokens.
    """
    if not schedule:
        return 0.0
    # Each micro-batch leaves the last stage one time after the one before; the longest sets the pace of filling it.
    each = [seconds_of(micro_batch.tokens(multiple)) / stages for micro_batch in schedule]
    return sum(each) + (stages - 1) * max(each)


def choose_schedule(
    adapters: Sequence[AdapterBatches],
    *,
    capacities: Sequence[int],
    settings: MicroBatchSettings,
    seconds_of: Callable[[Sequence[MicroBatch]], float],
) -> tuple[MicroBatchSettings, tuple[MicroBatch, ...]]:
    """Return the capacity and the schedule that take least, over ``capacities`` and groups: paired, single, and few.

    Args:
        seconds_of: Of a whole schedule, such as :func:`pipeline_seconds` or what the simulator says.

    Raises:
        ValueError: a sample is longer than every capacity.
    """
    longest = max(
        (math.ceil(n / settings.multiple) * settings.multiple for a in adapters for batch in a.lengths for n in batch),
        default=0,
    )
    best: tuple[float, MicroBatchSettings, tuple[MicroBatch, ...]] | None = None
    for capacity in sorted(capacity for capacity in set(capacities) if capacity >= longest):
        tried = replace(settings, capacity=capacity)
        paired = group_adapters(adapters, settings=tried)
        alone = tuple((adapter.adapter,) for adapter in adapters)
        # a host that keeps the order of samples launches nothing: there small micro-batches cost nothing
        fewer = [] if settings.keeps_order else few_groups(adapters, settings=tried)
        # which of them is best depends on the lengths
        for groups in dict.fromkeys((paired, alone, *fewer)):
            schedule = schedule_micro_batches(adapters, settings=tried, groups=groups)
            seconds = seconds_of(schedule)
            if best is None or seconds < best[0]:
                best = (seconds, tried, schedule)
    if best is None:
        raise ValueError(f"a sample of {longest} tokens is longer than every capacity of {sorted(capacities)}")
    return best[1], best[2]
