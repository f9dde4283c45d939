"""Measures the memory of passes before training: a few passes over random rows in a bank of their own.

Nothing of it reaches training: draws are keyed, not global, the bank and the rows are the probe's, and both are freed.
:mod:`cohort.scheduling.pass_memory` fits a model to the measurements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import SampleTooLargeError
from cohort.core.memory_records import GradientCheckpointing, PassKind, PassPeak, PassSize
from cohort.core.numerics import Numerics
from cohort.data.packing import stream_rows
from cohort.data.tokenised import TokenisedRows
from cohort.kernels.cross_entropy import logits_bytes
from cohort.kernels.packed_linear.launch.tables import WIDEST_RANK, rank_class
from cohort.models.decoder import Decoder
from cohort.training.cuda_graphs.asking_ahead import settle_asking
from cohort.training.cuda_graphs.few_layers import are_layers_alike, first_layers, num_alike_layers
from cohort.training.cuda_graphs.recording_bytes import extrapolated_bytes
from cohort.training.device_memory import release_cached
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.objectives import DEFAULT_OBJECTIVE
from cohort.training.objectives.objective import Objective
from cohort.training.optimizers.optimizer import UnfinishedUpdateError
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["MemoryProbe", "ProbePass", "probe_grid", "probe_rows", "worst_pass"]

# float32 sums and rounding to blocks show in passes smaller than this
LEAST_TOKENS = 96
# A pass is run through the fewest layers that have a first and a last one (and one between, where those two take less
# than it), and through three times that. A layer more is then a quarter of the difference, or a sixth: an allocator's
# rounding counts less than it would from one layer to the next.
FEW_LAYERS, DEEPER = 2, 3
# a model must have this many times the layers of both runs together
LEAST_SAVING = 3


@dataclass(frozen=True, kw_only=True)
class ProbePass:
    """One pass to measure: the rows of one adapter.

    Attributes:
        lengths: Tokens of each row.
        trained_share: Share of each row that is trained, at its end.
    """

    r: int
    lengths: tuple[int, ...]
    trained_share: float = 1.0

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)


def probe_grid(ranks: Sequence[int], *, tokens: int, longest: int, usual: int) -> list[ProbePass]:
    """Return a small sweep from which a fit can tell its terms apart, smallest passes first.

    The number of rows doubles; then, at half of the tokens or less, the trained share and the length vary. All that is
    measured once for the widest and once for the narrowest rank, which may run other kernels.

    Args:
        ranks: Every rank that will train.
    """
    usual, half = max(2, min(usual, tokens)), max(2, tokens // 2)

    def rows(total: int, length: int) -> tuple[int, ...]:
        return (length,) * max(1, total // length)

    sizes = sorted({max(LEAST_TOKENS, usual, tokens // share) for share in (8, 4, 2)})
    passes = []
    for r in sorted({min(ranks), max(ranks)}):
        passes += [ProbePass(r=r, lengths=rows(size, usual)) for size in sizes]
        passes.append(ProbePass(r=r, lengths=rows(half, usual), trained_share=0.25))
        passes.append(ProbePass(r=r, lengths=rows(half, max(usual, min(longest, half)))))
        passes.append(ProbePass(r=r, lengths=rows(sizes[0], max(8, usual // 4))))
    return sorted(passes, key=lambda own: own.num_tokens)


def probe_rows(probe: ProbePass, *, vocabulary: int, group_size: int = 1) -> TokenisedRows:
    """Return random rows of the pass's lengths, the last one again until all are in groups of ``group_size``."""
    missing = -len(probe.lengths) % group_size
    lengths = np.array(probe.lengths + probe.lengths[-1:] * missing, dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    trained = np.zeros(int(offsets[-1]), dtype=np.bool_)
    for start, length in zip(offsets.tolist(), lengths.tolist(), strict=False):
        first = max(1, round(length * (1 - probe.trained_share)))
        trained[start + min(length - 1, first) : start + length] = True
    # a generator of its own: the probe must not move a draw of training
    rng = np.random.default_rng(0)
    count = len(lengths)
    return TokenisedRows(
        tokens_T=rng.integers(0, vocabulary, size=int(offsets[-1])).astype(np.int32),
        trained_T=trained,
        offsets=offsets,
        prompts=("",) * count,
        references=("",) * count,
        sources=tuple(f"memory probe:{index + 1}" for index in range(count)),
        fingerprint="memory probe",
    )


def worst_pass(tokens: int, *, decoder: Decoder, widest: int, usual: int, longest: int) -> PassSize:
    """Return the size of the pass of ``tokens`` tokens that takes most: all of them trained, at the widest rank.

    Rows have half of the usual length where their number counts, and the longest length where that counts.
    """
    on_gpu = decoder.device.type == "cuda"
    num_rows = stream_rows(tokens, on_gpu=on_gpu)
    passes = range(0, max(1, widest), WIDEST_RANK)
    columns = sum(rank_class(min(WIDEST_RANK, widest - first)) for first in passes) if on_gpu else widest
    return PassSize(
        num_rows=num_rows,
        num_trained=tokens,
        rank_entries=num_rows * columns,
        head_bytes=logits_bytes(
            tokens,
            vocabulary=decoder.config.vocab_size,
            dtype=decoder.dtype,
            device=decoder.device,
            is_capped=decoder.config.logit_cap is not None,
        ),
        num_sequences=-(-2 * tokens // usual),
        sum_squares=tokens * longest,
        # no pass that is measured has this regime, so a model predicts the most of those that were
        regime="any",
    )


class MemoryProbe:
    """Runs passes to measure them, in a bank of its own.

    Attributes:
        reserve_bytes: The most that the allocator held beyond its own peak: blocks it could not use.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        target_linears: Mapping[str, tuple[int, int]],
        num_rank_rows: int,
        memory_limit_bytes: int | None = None,
        gradient_checkpointing: GradientCheckpointing = GradientCheckpointing.NEVER,
        objective: Objective = DEFAULT_OBJECTIVE,
        numerics: Numerics = Numerics.FAST,
    ) -> None:
        """Allocate the bank; ``gradient_checkpointing`` and ``numerics`` choose the kind of pass that is measured."""
        self._decoder = decoder
        self._executor = Executor(
            decoder,
            target_linears=target_linears,
            train_rows=probe_rows(ProbePass(r=1, lengths=(2,)), vocabulary=2),
            settings=ExecutorSettings(
                num_slots=1,
                num_rank_rows=num_rank_rows,
                token_budget=1 << 40,
                evaluation_token_budget=1 << 40,
                gradient_checkpointing=gradient_checkpointing,
                numerics=numerics,
            ),
            device=decoder.device,
            compute_dtype=decoder.dtype,
            memory_limit_bytes=memory_limit_bytes,
        )
        if self._executor.bank.is_exact:
            # each answer would be waited for, and there is none where no kernel is launched
            decoder.use_exact_products(asks_blas=False)
        self._depths = _depths(decoder, adapted=self._executor.bank.layout.columns)
        self._objective = objective
        self.reserve_bytes = 0

    def measure(self, probe: ProbePass, *, through_all: bool = False) -> tuple[tuple[PassPeak, ...], bool]:
        """Run a pass as training and as evaluation; return the peaks, and whether it ran in one piece.

        Where layers are alike and many, it is run through a few of them, and the peaks are those that it would have
        through all. Where it does not fit, the peaks are those of the smaller passes it was cut into, if any.

        Args:
            through_all: Whether it is run through all layers, so that it is known to fit.
        """
        # a task that trains on the same device may have begun to ask
        settle_asking()
        if through_all or self._depths is None:
            return self._measure(probe)
        found = []
        # the deeper one first: what the first pass of a size sets up rather adds to a prediction than takes from it
        for count in reversed(self._depths):
            with first_layers(self._decoder, count):
                peaks, fits = self._measure(probe)
            if not fits:
                return (), False
            found.append(peaks)
        if [(peak.kind, peak.size) for peak in found[0]] != [(peak.kind, peak.size) for peak in found[1]]:
            # not the same passes were watched, so their difference tells nothing
            return self._measure(probe)
        (few, more), depth = self._depths, len(self._decoder.layers)
        share = (depth - few) / (more - few)
        return tuple(_deeper(*pair, share=share) for pair in zip(*reversed(found), strict=True)), True

    def _measure(self, probe: ProbePass) -> tuple[tuple[PassPeak, ...], bool]:
        executor, device = self._executor, self._decoder.device
        size = self._objective.group_size
        rows = probe_rows(probe, vocabulary=self._decoder.config.vocab_size, group_size=size)
        groups = range(len(rows) // size)
        # zeros: drawing the weights of a large model takes longer than all passes
        weights_rD = torch.zeros(1, 1, device=device).expand(probe.r, executor.bank.layout.width)
        spec = TrialSpec(
            trial_id=0,
            seed=0,
            adapter=AdapterSpec(r=probe.r, lora_alpha=float(probe.r)),
            learning_rate=0.0,
            batch_size=len(groups),
            num_steps=1,
            objective=self._objective,
        )
        try:
            executor.load(spec, TrialState(adapter=AdapterState(weights=weights_rD)), rows=rows)
            executor.memory.take_peaks()
            executor.memory.observe_next(2)
            if device.type == "cuda":
                # the allocator gives back what earlier passes left where memory is short: only this pass's own
                # fragments count
                torch.cuda.empty_cache()
                executor.memory.highest_bytes = 0
            executor.step()
            # 0 where it was not measured
            if device.type == "cuda" and executor.memory.highest_bytes:
                unused = torch.cuda.memory_reserved(device) - executor.memory.highest_bytes
                self.reserve_bytes = max(self.reserve_bytes, unused)
            executor.evaluate(executor.resident, rows=rows, row_ids=groups)
            fits = not executor.take_shortages()
        except SampleTooLargeError:
            fits = False
        except UnfinishedUpdateError as error:
            # the update's buffers did not fit next to what the pass left, so the pass is too large as well
            if not isinstance(error.__cause__, torch.OutOfMemoryError):
                raise
            fits = False
        finally:
            for trial_id in executor.resident:
                executor.drop(trial_id)
        return executor.memory.take_peaks(), fits

    def close(self) -> None:
        device = self._decoder.device
        del self._executor
        release_cached(device)


def _depths(decoder: Decoder, *, adapted: Collection[str]) -> tuple[int, int] | None:
    """Return two numbers of layers whose passes tell what one through all takes; None where nothing is saved by them.

    Args:
        adapted: Full paths of the linears that have an adapter.
    """
    period = num_alike_layers(decoder)
    # on a CPU the first layer gives its input no gradient and the last leaves rows out, so one between is needed; on a
    # GPU the first takes what one between does
    least = FEW_LAYERS + 1 if decoder.device.type == "cpu" else FEW_LAYERS
    few = -(-least // period) * period
    # each of the two has a loss head, an update and an empty cache as well
    if LEAST_SAVING * (1 + DEEPER) * few > len(decoder.layers) or not are_layers_alike(decoder, adapted=adapted):
        return None
    return few, DEEPER * few


def _deeper(few: PassPeak, more: PassPeak, *, share: float) -> PassPeak:
    """Return the peak as many layers deeper as ``share`` times those between two passes of one size."""
    if few.kind is PassKind.EVALUATE:
        # it keeps nothing of a layer: what the two differ by is how the allocator rounds
        return replace(more, forward_bytes=max(few.forward_bytes, more.forward_bytes))
    return replace(
        more,
        forward_bytes=extrapolated_bytes(few.forward_bytes, more.forward_bytes, share=share),
        backward_bytes=extrapolated_bytes(few.backward_bytes, more.backward_bytes, share=share),
    )
