"""Samples of one global batch into micro-batches: the fewest, then the last one as empty as can be.

First-fit decreasing answers at once. Where it may be improved, two integer programs follow: the fewest bins, and with
that number the fewest tokens in the last one, which other samples then fill. Limits are counted in the solver's work,
so that the same samples always make the same micro-batches. The first answer stays unless the solver's is better.

Source: LoRAFusion 4.2.2.3, Algorithm 1. Equal samples of one adapter are counted, not told apart.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from ortools.sat.python import cp_model

from cohort.scheduling.pipelines.microbatch.level_packing import level_pack
from cohort.scheduling.pipelines.microbatch.packing import Bins, PackingLimits, emptiest_last, first_fit_decreasing
from cohort.scheduling.pipelines.microbatch.records import PipelineSample, padded_tokens

__all__ = ["pack_samples"]


def pack_samples(
    samples: Sequence[PipelineSample],
    *,
    capacity: int,
    multiple: int = 1,
    is_level: bool = False,
    limits: PackingLimits | None = None,
) -> Bins:
    """Return micro-batches of at most ``capacity`` padded tokens, the emptiest last; deterministic.

    Args:
        is_level: Make the longest as short as found, instead of the last one as empty as found.

    Raises:
        ValueError: a sample alone is longer than ``capacity``.
    """
    limits = limits or PackingLimits()
    greedy = first_fit_decreasing(samples, capacity=capacity, multiple=multiple)
    if limits.work_limit == 0 or len(greedy) <= 1:
        return greedy
    # No packing has fewer bins than all tokens would fill; padding may need more.
    fewest = math.ceil(sum(sample.length for sample in samples) / capacity)
    best = greedy
    for num_bins in range(fewest, len(greedy)):
        found = _solve(samples, num_bins, capacity=capacity, multiple=multiple, work_limit=limits.work_limit)
        if found is not None:
            best = found
            break
    if is_level:
        return _levelled(samples, best, capacity=capacity, multiple=multiple, work_limit=limits.work_limit)
    # The last micro-batch takes samples of the next batch, so what it has free is not lost. Nothing is gained where it
    # is as empty as the other bins allow.
    emptiest = max(0, sum(sample.length for sample in samples) - (len(best) - 1) * capacity)
    if padded_tokens(best[-1], multiple) > emptiest:
        found = _solve(
            samples, len(best), capacity=capacity, multiple=multiple, work_limit=limits.work_limit, hint=best
        )
        if found is not None and padded_tokens(found[-1], multiple) < padded_tokens(best[-1], multiple):
            best = found
    return best


def _levelled(
    samples: Sequence[PipelineSample], best: Bins, *, capacity: int, multiple: int, work_limit: float
) -> Bins:
    """Return as many micro-batches as ``best`` has with the longest as short as found."""
    hint = min(
        (level_pack(samples, capacity=capacity, multiple=multiple), best),
        key=lambda bins: (len(bins), _longest(bins, multiple)),
    )
    # no packing is more level than all tokens in equal parts
    if _longest(hint, multiple) <= math.ceil(sum(sample.length for sample in samples) / len(hint)):
        return hint
    found = _solve(
        samples, len(hint), capacity=capacity, multiple=multiple, work_limit=work_limit, hint=hint, is_level=True
    )
    return hint if found is None or _longest(found, multiple) >= _longest(hint, multiple) else found


def _longest(bins: Bins, multiple: int) -> int:
    return max(padded_tokens(own, multiple) for own in bins)


def _solve(
    samples: Sequence[PipelineSample],
    num_bins: int,
    *,
    capacity: int,
    multiple: int,
    work_limit: float,
    hint: Bins | None = None,
    is_level: bool = False,
) -> Bins | None:
    """Return the samples in ``num_bins`` bins, with a hint the last, or the longest, as short as found; None without
    any.
    """
    # Equal samples of one adapter are counted: naming each would give the solver as many symmetric answers.
    kinds = Counter((sample.adapter, sample.length) for sample in samples)
    model = cp_model.CpModel()
    counts = {
        kind: [model.new_int_var(0, count, f"{kind} in {b}") for b in range(num_bins)] for kind, count in kinds.items()
    }
    for kind, count in kinds.items():
        model.add(sum(counts[kind]) == count)
    loads: list[cp_model.LinearExprT] = []
    for b in range(num_bins):
        shares = []
        for adapter in sorted({adapter for adapter, _ in kinds}):
            tokens = sum(length * counts[a, length][b] for a, length in kinds if a == adapter)
            multiples = model.new_int_var(0, capacity // multiple, "")
            model.add(tokens <= multiple * multiples)
            shares.append(multiple * multiples)
        model.add(sum(shares) <= capacity)
        loads.append(sum(shares))
    if hint is not None:
        for b, own in enumerate(hint):
            held = Counter((sample.adapter, sample.length) for sample in own)
            for kind, variables in counts.items():
                model.add_hint(variables[b], held[kind])
        shortened = loads[-1]
        if is_level:
            shortened = model.new_int_var(0, capacity, "longest")
            for load in loads:
                model.add(load <= shortened)
        model.minimize(shortened)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    # Work, not seconds: the same samples must make the same micro-batches on every machine.
    solver.parameters.max_deterministic_time = work_limit
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    waiting: dict[tuple[int, int], list[PipelineSample]] = defaultdict(list)
    for sample in sorted(samples, reverse=True):
        waiting[sample.adapter, sample.length].append(sample)
    bins = [
        [waiting[kind].pop() for kind, variables in counts.items() for _ in range(solver.value(variables[b]))]
        for b in range(num_bins)
    ]
    return emptiest_last([own for own in bins if own], multiple)
