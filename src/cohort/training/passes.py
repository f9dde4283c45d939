"""One pass over a micro-batch, to train or to measure; a training pass can be sent to the device beforehand.

Between two steps the host picks samples, lays out the stream and builds the launch tables: one to three milliseconds in
which a GPU would be idle. So the first pass of a step is staged while the step before it still computes; after it the
host is ahead of the device.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.linear import LoraContext
from cohort.core.memory_records import PassKind, PassSize
from cohort.data.packing import PackedBatch, SlotSample, pack
from cohort.data.tokenised import ReferenceFiles
from cohort.kernels.cross_entropy import logits_bytes
from cohort.kernels.packed_linear import LaunchTables, SlotTable
from cohort.kernels.staging import to_device_unwaited
from cohort.models.decoder import Decoder
from cohort.models.pass_inputs.needed_rows import NeededRows
from cohort.models.spare_columns import reserve_spare_columns
from cohort.training.backward_start import seeded
from cohort.training.cuda_graphs.asking_ahead import is_asking
from cohort.training.cuda_graphs.captured_pass import StagedReplay
from cohort.training.cuda_graphs.captured_passes import CapturedPasses
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.device_memory import DeviceMemory
from cohort.training.group_terms import StepTerms, group_slots, group_terms
from cohort.training.reference.reference_adapter import read_reference_adapter
from cohort.training.token_losses import rows_with_losses, token_losses, token_weights

__all__ = ["MeasuringPasses", "Passes", "StagedPass", "pass_size", "terms_and_weights"]


@dataclass(frozen=True, kw_only=True)
class StagedPass:
    """A pass whose stream is on the device, to be launched kernel by kernel or as a graph.

    Attributes:
        slots: The bank's slots when it was staged; other ranks, scales or rank rows make it void.
        fresh_slots: Slots whose gradients it writes over what the bank holds.
        stream: The stream, what the linears need and the rows that losses read, or a graph whose tensors are filled.
    """

    entries: tuple[SlotSample, ...]
    slots: SlotTable
    fresh_slots: frozenset[int]
    stream: tuple[PackedBatch, LoraContext, NeededRows | None] | StagedReplay

    def is_for(self, entries: Sequence[SlotSample], *, slots: SlotTable, fresh_slots: frozenset[int]) -> bool:
        """Return whether this is the pass over exactly these samples, in a bank that has not changed."""
        if len(entries) != len(self.entries) or slots != self.slots or fresh_slots != self.fresh_slots:
            return False
        return all(a is b for a, b in zip(entries, self.entries, strict=True))


class MeasuringPasses(Protocol):
    """What an evaluation needs of passes: of one executor, or of a stage of a pipeline."""

    @property
    def context(self) -> int:
        """The longest row that the model reads."""
        ...

    def measure(self, entries: Sequence[SlotSample]) -> Tensor:
        """Return the token losses [T] of a pass over ``entries`` that keeps nothing."""
        ...

    def of_adapter(self, reference: ReferenceFiles) -> MeasuringPasses:
        """Return passes whose slot 0 is an adapter that trials are held to."""
        ...


class Passes:
    """Stages and runs the passes of one executor, small ones as the graphs of ``captured``."""

    def __init__(
        self,
        decoder: Decoder,
        bank: AdapterBank,
        *,
        memory: DeviceMemory,
        captured: CapturedPasses | None,
    ) -> None:
        self._context = decoder.config.max_position_embeddings
        self._decoder, self._bank, self._memory, self._captured = decoder, bank, memory, captured
        self._of_adapters: dict[ReferenceFiles, Passes] = {}

    @property
    def context(self) -> int:
        return self._context

    @property
    def are_recorded_together(self) -> bool:
        """Whether several ranks record each pass at once, so that an error of one is an error of all."""
        return self._captured is not None and self._captured.recorder.agree is not None

    @property
    def _graphs(self) -> CapturedPasses | None:
        # None where passes may not run as graphs: a graph would keep the norms of the step that it was recorded in, and
        # knows one table and one head for all
        return None if self._bank.has_magnitudes or self._bank.has_saved_modules else self._captured

    def record_ahead(self, upcoming: Callable[[], Sequence[PassShape]], *, num_rows: float) -> None:
        """Record a size that passes to come probably want, where passes may run as graphs.

        Args:
            upcoming, num_rows: As of :meth:`CapturedPasses.record_ahead`.
        """
        # an error comes again where a pass needs the size
        with contextlib.suppress(Exception):
            if self._graphs is not None:
                self._graphs.record_ahead(upcoming, num_rows=num_rows)

    def of_adapter(self, reference: ReferenceFiles) -> Passes:
        """Return passes whose slot 0 is an adapter that trials are held to; it is read once.

        Raises:
            InputError: its files are gone, damaged or no longer the same.
        """
        # not by its directory alone: tasks that join later may find another adapter there
        if reference not in self._of_adapters:
            adapter = read_reference_adapter(Path(reference.directory), self._decoder.config, sha256=reference.sha256)
            bank = AdapterBank(
                adapter.layout,
                num_slots=1,
                num_rank_rows=adapter.spec.num_rows,
                device=self._bank.weights_RD.device,
                dtype=self._bank.weights_RD.dtype,
                compute_dtype=self._bank.compute_RD.dtype,
                trains=False,
            )
            bank.is_exact = self._bank.is_exact
            bank.insert(adapter.spec, AdapterState(weights=adapter.weights_rD))
            self._of_adapters[reference] = Passes(self._decoder, bank, memory=self._memory, captured=None)
        return self._of_adapters[reference]

    def stage(
        self,
        entries: Sequence[SlotSample],
        steps: Mapping[int, StepTerms],
        *,
        fresh_slots: frozenset[int],
        recomputed: bool = False,
        upcoming: Callable[[], Sequence[PassShape]] | None = None,
    ) -> StagedPass:
        """Send what a pass over ``entries`` reads to the device.

        Args:
            steps: Objective and divisor of every slot's whole step.
            fresh_slots: Slots whose gradients the pass writes over what the bank holds.
            recomputed: Whether the pass uses gradient checkpointing; such a pass is never a graph's.
            upcoming: Returns the passes after this one, which a recording may be chosen for.
        """
        slots = self._bank.slot_table()
        # the weights of plain sums alone are filled in before a graph's launch, others between two graphs
        present = {entry.slot: steps[entry.slot].divisor for entry in entries}
        captured, from_terms = self._graphs, not all(steps[slot].objective.sums_tokens for slot in present)
        if captured is not None and not recomputed:
            replay = captured.stage(
                entries, divisors=present, fresh_slots=fresh_slots, from_terms=from_terms, upcoming=upcoming
            )
            if replay is not None:
                return StagedPass(entries=tuple(entries), slots=slots, fresh_slots=fresh_slots, stream=replay)
        batch = pack(entries, num_slots=self._bank.num_slots, device=self._bank.weights_RD.device)
        lora = self._bank.context(batch.segments, row_keys_T=batch.row_keys_T, fresh_slots=fresh_slots)
        needed = rows_with_losses(batch, lora, decoder=self._decoder)
        return StagedPass(entries=tuple(entries), slots=slots, fresh_slots=fresh_slots, stream=(batch, lora, needed))

    def train(
        self,
        entries: Sequence[SlotSample],
        steps: Mapping[int, StepTerms],
        *,
        fresh_slots: frozenset[int],
        staged: StagedPass | None = None,
        recomputed: bool = False,
        upcoming: Callable[[], Sequence[PassShape]] | None = None,
    ) -> Tensor:
        """Put the gradients of ``entries`` into the bank and return the terms of their groups, still on the device.

        The arguments are those of :meth:`stage`, and what it returned for them if the pass was staged before.
        """
        if staged is None or not staged.is_for(entries, slots=self._bank.slot_table(), fresh_slots=fresh_slots):
            staged = self.stage(entries, steps, fresh_slots=fresh_slots, recomputed=recomputed, upcoming=upcoming)
        if isinstance(staged.stream, StagedReplay):
            assert self._captured is not None, "only graphs stage replays"
            self._memory.before_pass()
            replayed = self._captured.replay(staged.stream)
            if replayed is None:
                # its graph has been given up, or filled for another pass
                return self.train(entries, steps, fresh_slots=fresh_slots, recomputed=recomputed, upcoming=upcoming)
            if not staged.stream.awaits_weights:
                return group_terms(replayed, entries, steps)
            terms_G, weights_T = _of_terms(replayed.detach(), entries, steps, and_sums=True)
            self._captured.add_gradients(staged.stream, weights_T)
            return terms_G
        batch, lora, needed = staged.stream
        bank = self._bank
        if not bank.is_exact:
            reserve_spare_columns(
                self._decoder, adapted=lora.factors, num_rank_rows=bank.num_rank_rows, num_rows=batch.num_rows
            )
        with self._memory.observe(PassKind.TRAIN, self._size(batch, lora, recomputed=recomputed)) as observed:
            losses_T = token_losses(self._decoder, batch, lora, gradient_checkpointing=recomputed, needed=needed)
            observed.forward_done()
            terms_G, weights_T = terms_and_weights(losses_T.detach(), batch, entries, steps)
            seeded(losses_T, weights_T).backward()
        return terms_G

    @torch.no_grad()
    def measure(self, entries: Sequence[SlotSample]) -> Tensor:
        """Return the token losses [T] of a pass over ``entries`` that keeps nothing."""
        captured = self._graphs
        if captured is not None:
            self._memory.before_pass()
        losses_T = None if captured is None else captured.run(entries)
        if losses_T is not None:
            return losses_T
        batch = pack(entries, num_slots=self._bank.num_slots, device=self._bank.weights_RD.device)
        # no row keys: an evaluation drops nothing
        lora = self._bank.context(batch.segments)
        with self._memory.observe(PassKind.EVALUATE, self._size(batch, lora)):
            return token_losses(self._decoder, batch, lora)

    def _size(self, batch: PackedBatch, lora: LoraContext, *, recomputed: bool = False) -> PassSize | None:
        """Return what the memory of a pass depends on; None where another thread takes some meanwhile."""
        return None if is_asking() else pass_size(batch, lora, decoder=self._decoder, recomputed=recomputed)


def terms_and_weights(
    losses_T: Tensor, batch: PackedBatch, entries: Sequence[SlotSample], steps: Mapping[int, StepTerms]
) -> tuple[Tensor, Tensor]:
    """Return the term of each group [G], and the weight that each token's loss has in the sum of all slots' losses [T].

    The weights of plain sums are known beforehand and are added to those that follow from terms: a slot has one kind
    or the other, and zeros in the other leave its bits alone.
    """
    sums = {slot: step.divisor for slot, step in steps.items() if step.objective.sums_tokens}
    present = {entry.slot: sums[entry.slot] for entry in entries if entry.slot in sums}
    if len(present) == len({entry.slot for entry in entries}):
        return group_terms(losses_T, entries, steps), token_weights(batch, divisors=present, dtype=losses_T.dtype)
    terms_G, weights_T = _of_terms(losses_T, entries, steps, and_sums=False)
    if present:
        weights_T = weights_T + token_weights(batch, divisors=present, dtype=losses_T.dtype)
    return terms_G, weights_T


def _of_terms(
    losses_T: Tensor, entries: Sequence[SlotSample], steps: Mapping[int, StepTerms], *, and_sums: bool
) -> tuple[Tensor, Tensor]:
    """Return the term of each group [G], and the weights [T] that follow from terms.

    With ``and_sums`` those of plain sums, which are terms as well, else 0 on their rows.
    """
    leaf_T = losses_T.requires_grad_()
    with torch.enable_grad():
        terms_G = group_terms(leaf_T, entries, steps)
        weights = [
            1 / steps[slot].divisor if and_sums or not steps[slot].objective.sums_tokens else 0.0
            for slot in group_slots(entries)
        ]
        # pinned, as the token weights are: a plain transfer would make the host wait for the forward pass
        weights_G = to_device_unwaited(np.array(weights), terms_G.device).to(terms_G.dtype)
        (weights_T,) = torch.autograd.grad(seeded(terms_G, weights_G), leaf_T)
    return terms_G.detach(), weights_T


def pass_size(batch: PackedBatch, lora: LoraContext, *, decoder: Decoder, recomputed: bool = False) -> PassSize:
    """Return what the memory of a pass over ``batch`` depends on, ``recomputed`` or keeping its activations."""
    bounds = batch.sequence_offsets
    num_trained = batch.trained_rows_M.shape[0]
    if isinstance(lora.tables, LaunchTables):
        rank_entries = lora.tables.num_columns * batch.num_rows
    else:
        rows = (batch.segments.rows(slot) for slot in range(lora.slots.num_slots))
        rank_entries = sum((own.stop - own.start) * r for own, r in zip(rows, lora.slots.ranks, strict=True))
    mlp = decoder.layers[0].mlp if decoder.layers else None
    fused = mlp is not None and mlp.is_fused(batch.tokens_T.new_empty(0, dtype=decoder.dtype), lora)
    return PassSize(
        num_rows=batch.num_rows,
        num_trained=num_trained,
        rank_entries=rank_entries,
        head_bytes=logits_bytes(
            num_trained,
            vocabulary=decoder.config.vocab_size,
            dtype=decoder.dtype,
            device=batch.tokens_T.device,
            is_capped=decoder.config.logit_cap is not None,
        ),
        num_sequences=len(bounds) - 1,
        sum_squares=sum((stop - begin) ** 2 for begin, stop in itertools.pairwise(bounds)),
        regime="fused feed-forward" if fused else "plain",
        recomputed=recomputed,
    )
