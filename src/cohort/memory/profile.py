"""Measures the memory of passes before a run, fits a model to the peaks, and finds the largest pass that fits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.core.memory_records import GradientCheckpointing, PassKind, PassPeak, PassSize
from cohort.core.numerics import Numerics
from cohort.machine.measurements import KnownPasses
from cohort.models.decoder import Decoder
from cohort.scheduling.pass_memory import PassModel, fit_passes, largest_that_fits
from cohort.scheduling.pass_sizes import MemoryNeeds
from cohort.training.cuda_graphs.recorded_shapes import launching_rows
from cohort.training.memory_probe import MemoryProbe, ProbePass, probe_grid, worst_pass
from cohort.training.objectives import DEFAULT_OBJECTIVE
from cohort.training.objectives.objective import Objective

__all__ = ["MemoryProfile", "profile_memory"]

# tokens of the sweep's largest pass; a line reaches further than that, and what is then chosen is checked by a pass
MOST_TOKENS = 8192
# a CPU works sample by sample
MOST_CPU_TOKENS, MOST_CPU_ROWS = 1024, 24
# what a recorded pass takes over a launched one of as many tokens: its attention is padded
GRAPH_FACTOR = 1.2
# a longest row that takes more of the room than this may not fit when sizes are chosen: less is free by then
SURE_SHARE = 0.95
# tokens between the passes that the search for the largest tells apart
GRAIN = 64


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """The measured passes, and the model fitted to them.

    Attributes:
        decoder: The frozen backbone.
        model: Predicts the peak of any pass.
        widest: The widest rank that will train.
        usual, longest: Tokens of rows that will be trained on.
        longest_group: Tokens of the longest group of rows that share a pass, often of one row.
        checked_tokens: The largest pass that was run, now or by an earlier run.
        largest_tokens: The largest pass that fits by prediction; it has no more rows than what was run, unless that
            failed.
        fit_error_percent: Mean absolute error on the passes of the sweep.
        reserve_bytes: What the allocator held beyond its own peak.
        num_passes, seconds: The cost of measuring; no pass where an earlier run had measured enough.
    """

    decoder: Decoder
    model: PassModel
    widest: int
    usual: int
    longest: int
    longest_group: int
    checked_tokens: int
    largest_tokens: int
    fit_error_percent: float
    reserve_bytes: int
    num_passes: int = 0
    seconds: float = 0.0

    @property
    def passes(self) -> KnownPasses:
        """The figures that spare the next run of such a task its measurement."""
        return KnownPasses(
            peaks=self.model.samples,
            correction=self.model.correction,
            checked_tokens=self.checked_tokens,
            reserve_bytes=self.reserve_bytes,
            fit_error_percent=self.fit_error_percent,
        )

    def worst(self, tokens: int, *, recomputed: bool = False) -> PassSize:
        """Return the size of the pass of ``tokens`` tokens that takes the most memory."""
        size = worst_pass(tokens, decoder=self.decoder, widest=self.widest, usual=self.usual, longest=self.longest)
        return replace(size, recomputed=recomputed)

    def pass_bytes(self, tokens: int) -> float:
        """Return the most that a micro-batch of ``tokens`` takes, and an evaluation of twice as many."""
        pairs = ((PassKind.TRAIN, tokens), (PassKind.EVALUATE, 2 * tokens))
        return max(self.model.predict(kind, self.worst(count)) for kind, count in pairs)

    def recomputed_bytes(self, tokens: int) -> float:
        """Return what a micro-batch of ``tokens`` takes whose layers are recomputed, and an evaluation of as many."""
        train = self.model.predict(PassKind.TRAIN, self.worst(tokens, recomputed=True))
        return max(train, self.model.predict(PassKind.EVALUATE, self.worst(tokens)))

    def graph_bytes(self, tokens: int) -> float:
        """Return what recorded passes of at most ``tokens`` hold: their attention may be padded."""
        return GRAPH_FACTOR * self.pass_bytes(tokens) if self.decoder.device.type == "cuda" else 0.0

    def needs(self, *, margin_share: float) -> MemoryNeeds:
        return MemoryNeeds(
            pass_bytes=self.pass_bytes,
            recomputed_bytes=self.recomputed_bytes,
            graph_bytes=self.graph_bytes,
            launching_tokens=launching_rows(self.decoder.config),
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
    longest_group: int | None = None,
    room_bytes: float,
    most_tokens: int,
    memory_limit_bytes: int | None = None,
    known: KnownPasses | None = None,
    gradient_checkpointing: GradientCheckpointing = GradientCheckpointing.AUTO,
    objective: Objective = DEFAULT_OBJECTIVE,
    numerics: Numerics = Numerics.FAST,
    clock: Callable[[], float] = time.perf_counter,
) -> MemoryProfile | None:
    """Measure a small sweep of passes, fit, and find the largest that fits; None where not even the smallest does.

    The search is by prediction, and a pass checks its answer; where the pass takes more, the model learns that and the
    search is repeated. Known passes are not measured again, and a pass no larger than one that was run is not measured.
    Recomputed passes are measured where the longest row hardly fits with everything kept, or where all are recomputed.

    Args:
        usual, longest: Tokens of a usual row and of the longest.
        longest_group: Tokens of the longest group of rows that share a pass; None where each row stands alone.
        room_bytes: For a pass, next to the base model and the widest adapter.
        most_tokens: Beyond which a larger pass makes no run faster.
        memory_limit_bytes: The most that everything may take, on a CPU.
    """
    begun = clock()
    search = _Search(
        decoder=decoder,
        widest=max(ranks),
        usual=usual,
        longest=longest,
        longest_group=longest_group or longest,
        room_bytes=room_bytes,
        most_tokens=most_tokens,
    )

    def open_probe(mode: GradientCheckpointing) -> MemoryProbe:
        return MemoryProbe(
            decoder,
            target_linears=layout.linears,
            num_rank_rows=aligned_rank(search.widest),
            memory_limit_bytes=memory_limit_bytes,
            gradient_checkpointing=mode,
            objective=objective,
            numerics=numerics,
        )

    swept = MOST_TOKENS if decoder.device.type != "cpu" else min(MOST_CPU_TOKENS, MOST_CPU_ROWS * usual)
    grid = probe_grid(ranks, tokens=min(swept, most_tokens), longest=longest, usual=usual)
    found = None if known is None else search.without_measuring(known)
    if found is None:
        with contextlib.closing(open_probe(GradientCheckpointing.NEVER)) as probe:
            found = search.measured(probe, grid, known)
    if found is None:
        return None
    sure_bytes = SURE_SHARE * room_bytes - found.reserve_bytes
    does_fit = found.model.predict(PassKind.TRAIN, search.worst(search.longest_group)) <= sure_bytes
    # recomputed passes have a fit of their own: a second sweep, which is spared where nothing will be recomputed
    if gradient_checkpointing is GradientCheckpointing.ALWAYS or (
        gradient_checkpointing is GradientCheckpointing.AUTO and not does_fit
    ):
        with contextlib.closing(open_probe(GradientCheckpointing.ALWAYS)) as probe:
            found = search.with_recomputed(probe, grid, found)
    return replace(found, seconds=clock() - begun)


def _model_of(known: KnownPasses) -> PassModel:
    return replace(fit_passes(known.peaks), correction=known.correction)


@dataclass(frozen=True, kw_only=True)
class _Search:
    """The search for the largest pass that fits; its fields are arguments of :func:`profile_memory`."""

    decoder: Decoder
    widest: int
    usual: int
    longest: int
    longest_group: int
    room_bytes: float
    most_tokens: int

    def without_measuring(self, known: KnownPasses) -> MemoryProfile | None:
        """Return the profile that known passes imply; None where a pass of more rows than was run may fit."""
        model = _model_of(known)
        largest = self._largest(model)
        if largest >= known.checked_tokens + self.longest_group:
            return None
        return self._profile(
            model, largest, known.checked_tokens, error_percent=known.fit_error_percent, reserve=known.reserve_bytes
        )

    def measured(
        self, probe: MemoryProbe, grid: Sequence[ProbePass], known: KnownPasses | None
    ) -> MemoryProfile | None:
        """Sweep, where nothing is known, then check the largest pass that fits by prediction."""
        if known is None:
            peaks, num_passes = _sweep(probe, grid)
            # no fit without a pass of each kind
            if {peak.kind for peak in peaks} != set(PassKind):
                return None
            model = fit_passes(peaks)
            error = model.error_percent(peaks)
        else:
            # the first pass sets up libraries, whose workspaces would count as its own memory
            probe.measure(grid[0])
            model, num_passes, error = _model_of(known), 1, known.fit_error_percent
        checked = largest = 0
        for _ in range(3):
            largest = self._largest(model)
            length = min(self.longest, max(2, largest))
            check = ProbePass(r=self.widest, lengths=(length,) * max(1, largest // length))
            found, fits = probe.measure(check, through_all=True) if largest else ((), True)
            num_passes += 1
            model = model.refitted(found)
            if fits and max((peak.num_bytes for peak in found), default=0) <= self.room_bytes:
                checked = check.num_tokens if found else 0
                break
            if not fits:
                model = model.corrected(PassKind.TRAIN, self.worst(largest), at_least=1.05 * self.room_bytes)
        # known passes were measured with another process's libraries: the larger reserve holds for both
        reserve = max(probe.reserve_bytes, 0 if known is None else known.reserve_bytes)
        return self._profile(model, largest, checked, error_percent=error, reserve=reserve, num_passes=num_passes)

    def with_recomputed(self, probe: MemoryProbe, grid: Sequence[ProbePass], found: MemoryProfile) -> MemoryProfile:
        """Add recomputed passes to a profile, unless it has some; then run the longest row, which decides."""
        if found.model.knows(PassKind.TRAIN, recomputed=True):
            return found
        peaks, count = _sweep(probe, grid)
        longest, fits = probe.measure(ProbePass(r=self.widest, lengths=self._longest_lengths), through_all=True)
        # evaluations keep nothing either way
        kept = (*found.model.samples, *(peak for peak in peaks if peak.kind is PassKind.TRAIN))
        model = replace(fit_passes(kept), correction=found.model.correction)
        model = model.refitted([peak for peak in longest if peak.kind is PassKind.TRAIN])
        if not fits:
            size = found.worst(self.longest_group, recomputed=True)
            model = model.corrected(PassKind.TRAIN, size, at_least=1.05 * self.room_bytes)
        return replace(
            found,
            model=model,
            num_passes=found.num_passes + count + 1,
            reserve_bytes=max(found.reserve_bytes, probe.reserve_bytes),
        )

    @property
    def _longest_lengths(self) -> tuple[int, ...]:
        """The lengths of the rows of the longest group."""
        rest = self.longest_group - self.longest
        return (self.longest, rest) if rest > 1 else (self.longest,)

    def worst(self, tokens: int) -> PassSize:
        return worst_pass(tokens, decoder=self.decoder, widest=self.widest, usual=self.usual, longest=self.longest)

    def _largest(self, model: PassModel) -> int:
        """Return the tokens of the largest training pass that fits by prediction, a multiple of :data:`GRAIN`."""
        return GRAIN * largest_that_fits(
            lambda count: model.predict(PassKind.TRAIN, self.worst(GRAIN * count)) <= self.room_bytes,
            at_most=max(1, self.most_tokens // GRAIN),
        )

    def _profile(
        self, model: PassModel, largest: int, checked: int, *, error_percent: float, reserve: int, num_passes: int = 0
    ) -> MemoryProfile:
        return MemoryProfile(
            decoder=self.decoder,
            model=model,
            widest=self.widest,
            usual=self.usual,
            longest=self.longest,
            longest_group=self.longest_group,
            checked_tokens=checked,
            largest_tokens=largest,
            fit_error_percent=error_percent,
            reserve_bytes=reserve,
            num_passes=num_passes,
        )


def _sweep(probe: MemoryProbe, grid: Sequence[ProbePass]) -> tuple[list[PassPeak], int]:
    """Return the peaks of the grid's passes up to the first that does not fit, and how many were run."""
    # the first pass sets up libraries, whose workspaces would count as its own memory
    probe.measure(grid[0])
    peaks: list[PassPeak] = []
    for count, planned in enumerate(grid, start=2):
        found, fits = probe.measure(planned)
        peaks += found
        if not fits:
            return peaks, count
    return peaks, 1 + len(grid)
