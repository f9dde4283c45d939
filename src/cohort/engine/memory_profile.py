"""Measures what passes take before a run, fits a model to it, and says what fits: probing joined to planning."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.core.memory_records import PassKind, PassPeak, PassSize
from cohort.engine.sizing import MemoryNeeds
from cohort.models.decoder import Decoder
from cohort.scheduling.memory_fit import PassModel, fit_passes
from cohort.scheduling.memory_model import largest_that_fits
from cohort.training.memory_probe import MemoryProbe, ProbePass, probe_grid, worst_pass

__all__ = ["MARGIN_SHARE", "MemoryProfile", "profile_memory"]

# of the memory, stays free beside what was measured: for fragments, and for predictions that are a little low
MARGIN_SHARE = 0.05
# tokens of the sweep's largest pass; a line reaches further than that, and what is then chosen is checked by a pass
MOST_TOKENS = 8192
# a CPU works sample by sample
MOST_CPU_TOKENS, MOST_CPU_ROWS = 1024, 24
# what a recorded pass takes over a launched one of as many tokens: its attention is padded
GRAPH_FACTOR = 1.2
# tokens between the passes that the search for the largest tells apart
GRAIN = 64


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """What was measured, and what follows from it.

    Attributes:
        decoder: The frozen backbone.
        model: Predicts the peak of any pass.
        widest: The widest rank that will train.
        usual, longest: Tokens of rows that will be trained on.
        checked_tokens: The largest pass that was run: by measurement it fits, by prediction it is the largest.
        largest_tokens: The largest pass that fits by prediction; at least :attr:`checked_tokens` unless that failed.
        fit_error_percent: Mean absolute error on the passes of the sweep.
        reserve_bytes: What the allocator held beyond its own peak.
        num_passes, seconds: What it cost.
    """

    decoder: Decoder
    model: PassModel
    widest: int
    usual: int
    longest: int
    checked_tokens: int
    largest_tokens: int
    fit_error_percent: float
    reserve_bytes: int
    num_passes: int
    seconds: float

    def worst(self, tokens: int) -> PassSize:
        """Return the size of the pass of ``tokens`` tokens that takes most."""
        return worst_pass(tokens, decoder=self.decoder, widest=self.widest, usual=self.usual, longest=self.longest)

    def pass_bytes(self, tokens: int) -> float:
        """Return the most that a micro-batch of ``tokens`` takes, and an evaluation of twice as many."""
        pairs = ((PassKind.TRAIN, tokens), (PassKind.EVALUATE, 2 * tokens))
        return max(self.model.predict(kind, self.worst(count)) for kind, count in pairs)

    def graph_bytes(self, tokens: int) -> float:
        """Return what recorded passes of at most ``tokens`` hold: their attention is padded."""
        return GRAPH_FACTOR * self.pass_bytes(tokens) if self.decoder.device.type == "cuda" else 0.0

    def needs(self, *, margin_share: float = MARGIN_SHARE) -> MemoryNeeds:
        """Return what sizes are chosen by."""
        return MemoryNeeds(
            pass_bytes=self.pass_bytes,
            graph_bytes=self.graph_bytes,
            reserve_bytes=self.reserve_bytes,
            margin_share=margin_share,
        )


def profile_memory(
    decoder: Decoder,
    *,
    layout: AdapterLayout,
    ranks: Sequence[int],
    usual: int,
    longest: int,
    room_bytes: float,
    most_tokens: int,
    memory_limit_bytes: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> MemoryProfile | None:
    """Measure a small sweep of passes, fit, and find the largest that fits; None where not even the smallest does.

    The search is by prediction, its answer is checked by a pass; where that takes more the model learns it, once more.

    Args:
        decoder: The frozen backbone.
        layout: Adapted linears.
        ranks: Every rank that will train.
        usual, longest: Of rows, in tokens.
        room_bytes, most_tokens: Of a pass: beside base model and the widest adapter; beyond them no run is faster.
        memory_limit_bytes, clock: Of everything, on a CPU; for the time it takes.
    """
    begun = clock()
    widest = max(ranks)

    def worst(tokens: int) -> PassSize:
        return worst_pass(tokens, decoder=decoder, widest=widest, usual=usual, longest=longest)

    probe = MemoryProbe(
        decoder,
        target_linears=layout.linears,
        num_slots=1,
        num_rank_rows=aligned_rank(widest),
        compute_dtype=decoder.dtype,
        memory_limit_bytes=memory_limit_bytes,
    )
    swept = MOST_TOKENS if decoder.device.type != "cpu" else min(MOST_CPU_TOKENS, MOST_CPU_ROWS * usual)
    grid = probe_grid(ranks, tokens=min(swept, most_tokens), longest=longest, usual=usual)
    try:
        peaks, num_passes = _sweep(probe, grid)
        if {peak.kind for peak in peaks} != set(PassKind):
            return None
        model = fit_passes(peaks)
        error = model.error_percent(peaks)
        checked = largest = 0
        for _ in range(3):
            largest = _largest(model, worst, room_bytes=room_bytes, most_tokens=most_tokens)
            length = min(longest, max(2, largest))
            check = ProbePass(ranks=(widest,), lengths=(length,) * max(1, largest // length))
            found, fits = probe.measure(check) if largest else ((), True)
            num_passes += 1
            model = model.refitted(found)
            if fits and max((peak.num_bytes for peak in found), default=0) <= room_bytes:
                checked = check.num_tokens if found else 0
                break
            if not fits:
                model = model.corrected(PassKind.TRAIN, worst(largest), at_least=1.05 * room_bytes)
    finally:
        probe.close()
    return MemoryProfile(
        decoder=decoder,
        model=model,
        widest=widest,
        usual=usual,
        longest=longest,
        checked_tokens=checked,
        largest_tokens=largest,
        fit_error_percent=error,
        reserve_bytes=probe.reserve_bytes,
        num_passes=num_passes,
        seconds=clock() - begun,
    )


def _sweep(probe: MemoryProbe, grid: Sequence[ProbePass]) -> tuple[list[PassPeak], int]:
    """Return the peaks of the grid's passes up to the first that does not fit, and how many were run."""
    probe.measure(grid[0])  # the warm-up step: libraries set themselves up in it
    peaks: list[PassPeak] = []
    for count, planned in enumerate(grid, start=2):
        found, fits = probe.measure(planned)
        peaks += found
        if not fits:
            return peaks, count
    return peaks, 1 + len(grid)


def _largest(model: PassModel, worst: Callable[[int], PassSize], *, room_bytes: float, most_tokens: int) -> int:
    """Return the tokens of the largest training pass that fits by prediction, a multiple of :data:`GRAIN`."""
    return GRAIN * largest_that_fits(
        lambda count: model.predict(PassKind.TRAIN, worst(GRAIN * count)) <= room_bytes,
        at_most=max(1, most_tokens // GRAIN),
    )
