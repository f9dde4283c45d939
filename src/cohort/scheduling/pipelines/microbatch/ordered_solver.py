"""Samples of one global batch into micro-batches by integer programs that keep each adapter's order.

An adapter's samples stand in micro-batches in the order in which its gradient is summed, which its bits need on a CPU;
samples of different adapters may share one in any way. As without an order there are two programs: the fewest
micro-batches, then, with that number, the fewest tokens in the last one, which samples of the next batch then fill; or,
beyond the paper, the fewest in the longest one, so that stages wait least for each other. Limits are counted in the
solver's work. The greedy answer stays unless the solver's is better.

Source: LoRAFusion 4.2.2.3, Algorithm 1, with an order that the paper does not keep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ortools.sat.python import cp_model

from cohort.scheduling.pipelines.microbatch.ordered_packing import ordered_pack
from cohort.scheduling.pipelines.microbatch.packing import Bins, PackingLimits
from cohort.scheduling.pipelines.microbatch.records import PipelineSample, padded_tokens

__all__ = ["pack_in_order"]


def pack_in_order(
    samples: Sequence[PipelineSample],
    *,
    capacity: int,
    multiple: int = 1,
    is_level: bool = False,
    limits: PackingLimits | None = None,
) -> Bins:
    """Return micro-batches of at most ``capacity`` padded tokens; deterministic.

    Args:
        is_level: Make the longest as short as found, instead of the last one as empty as found.

    Raises:
        ValueError: a sample alone is longer than ``capacity``.
    """
    limits = limits or PackingLimits()
    greedy = ordered_pack(samples, capacity=capacity, multiple=multiple)
    if limits.work_limit == 0 or len(greedy) <= 1:
        return greedy

    def size(bins: Bins) -> tuple[int, int]:
        tokens = [padded_tokens(own, multiple) for own in bins]
        return len(bins), max(tokens) if is_level else tokens[-1]

    fewest = math.ceil(sum(sample.length for sample in samples) / capacity)
    for num_bins in range(fewest, len(greedy) + 1):
        program = _Program(samples, num_bins, capacity=capacity, multiple=multiple)
        # the greedy answer is the first one of the last program
        found = greedy if num_bins == len(greedy) else program.solve(limits.work_limit)
        if found is not None:
            best = program.improve(found, limits.work_limit, is_level=is_level) or found
            return min(best, greedy, key=size)
    return greedy


class _Program:
    """One number of micro-batches: which samples are in the first b of them, for each b."""

    def __init__(self, samples: Sequence[PipelineSample], num_bins: int, *, capacity: int, multiple: int) -> None:
        self.samples, self.num_bins = sorted(samples), num_bins
        self.model = cp_model.CpModel()
        # within[i][b]: sample i stands in one of the micro-batches 0 to b
        self.within = [[self.model.new_bool_var(f"{i} by {b}") for b in range(num_bins)] for i in self._places]
        for own in self.within:
            self.model.add(own[-1] == 1)
            for earlier, later in pairwise(own):
                self.model.add_implication(earlier, later)
        for i, j in pairwise(self._places):
            if self.samples[i].adapter == self.samples[j].adapter:
                for b in range(num_bins):
                    self.model.add_implication(self.within[j][b], self.within[i][b])
        self.loads = [self._load(b, capacity=capacity, multiple=multiple) for b in range(num_bins)]
        self.capacity = capacity

    @property
    def _places(self) -> range:
        return range(len(self.samples))

    def _load(self, b: int, *, capacity: int, multiple: int) -> cp_model.LinearExprT:
        shares: list[cp_model.LinearExprT] = []
        for adapter in sorted({sample.adapter for sample in self.samples}):
            own = [i for i in self._places if self.samples[i].adapter == adapter]
            tokens = sum(self.samples[i].length * self.within[i][b] for i in own)
            if b:
                tokens -= sum(self.samples[i].length * self.within[i][b - 1] for i in own)
            multiples = self.model.new_int_var(0, capacity // multiple, "")
            self.model.add(tokens <= multiple * multiples)
            shares.append(multiple * multiples)
        self.model.add(sum(shares) <= capacity)
        return sum(shares)

    def improve(self, bins: Bins, work_limit: float, *, is_level: bool) -> Bins | None:
        """Return a packing whose longest, or last, micro-batch is as short as found; None where none is found."""
        bin_of = {sample: b for b, own in enumerate(bins) for sample in own}
        for sample, own in zip(self.samples, self.within, strict=True):
            for b, variable in enumerate(own):
                self.model.add_hint(variable, bin_of[sample] <= b)
        shortened = self.loads[-1]
        if is_level:
            shortened = self.model.new_int_var(0, self.capacity, "longest")
            for load in self.loads:
                self.model.add(load <= shortened)
        self.model.minimize(shortened)
        return self.solve(work_limit)

    def solve(self, work_limit: float) -> Bins | None:
        """Return any packing, the best found by the objective there is; None without one."""
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        # work, not seconds: the same samples must make the same micro-batches on every machine
        solver.parameters.max_deterministic_time = work_limit
        if solver.solve(self.model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        bins: Bins = [[] for _ in range(self.num_bins)]
        for sample, own in zip(self.samples, self.within, strict=True):
            bins[next(b for b, variable in enumerate(own) if solver.value(variable))].append(sample)
        return [own for own in bins if own]
