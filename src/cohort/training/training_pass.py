"""One training pass: forward and backward over a micro-batch, its stream sent to the device beforehand where it can be.

Between two steps the host picks samples, lays out the stream and builds the launch tables: one to three milliseconds in
which a GPU would stand idle. So the first pass of a step is staged while the step before it still computes; the host is
ahead of the device after that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.adapters.linear import LoraContext
from cohort.core.memory_records import PassKind
from cohort.data.packing import PackedBatch, SlotSample, pack
from cohort.kernels.packed_linear import SlotTable
from cohort.models.decoder import Decoder
from cohort.models.spare_columns import make_room
from cohort.training.captured_pass import CapturedPasses, StagedReplay
from cohort.training.device_memory import DeviceMemory
from cohort.training.micro_batches import pass_size
from cohort.training.objectives.objective import Objective
from cohort.training.token_losses import token_losses, token_weights

__all__ = ["StagedPass", "TrainingPasses"]


@dataclass(frozen=True, kw_only=True)
class StagedPass:
    """A pass whose stream is on the device: to be launched one by one, or the replay of a graph.

    Attributes:
        entries: The samples in it.
        slots: The bank's slots as they were; other ranks, scales or rank rows make it void.
        fresh_slots: Whose gradients it writes over what the bank holds.
        stream: The stream and what the linears need, or a graph whose tensors are filled.
    """

    entries: tuple[SlotSample, ...]
    slots: SlotTable
    fresh_slots: frozenset[int]
    stream: tuple[PackedBatch, LoraContext] | StagedReplay

    def is_for(self, entries: Sequence[SlotSample], *, slots: SlotTable, fresh_slots: frozenset[int]) -> bool:
        """Tell whether this is the pass over exactly these samples, in a bank that has not changed."""
        if len(entries) != len(self.entries) or slots != self.slots or fresh_slots != self.fresh_slots:
            return False
        return all(a is b for a, b in zip(entries, self.entries, strict=True))


class TrainingPasses:
    """Stages and runs the passes of one executor."""

    def __init__(
        self,
        decoder: Decoder,
        bank: AdapterBank,
        *,
        objective: Objective,
        memory: DeviceMemory,
        captured: CapturedPasses | None,
    ) -> None:
        """Train the adapters of ``bank`` on ``decoder``, small passes as the graphs of ``captured``."""
        self._decoder, self._bank, self._objective, self._memory = decoder, bank, objective, memory
        # a graph's weights are filled in before its launch: only plain sums of token losses know them then
        self._captured = captured if objective.sums_tokens else None

    def stage(
        self,
        entries: Sequence[SlotSample],
        divisors: Mapping[int, int],
        *,
        fresh_slots: frozenset[int],
        recomputed: bool = False,
    ) -> StagedPass:
        """Send what a pass over ``entries`` reads to the device.

        Args:
            entries: Sorted by slot.
            divisors: The objective's, of every slot's whole step.
            fresh_slots: Slots whose gradients the pass writes over what the bank holds.
            recomputed: Whether the pass uses gradient checkpointing; such a pass is never a graph's.
        """
        slots = self._bank.slot_table()
        if self._captured is not None and not recomputed:
            present = {entry.slot: divisors[entry.slot] for entry in entries}
            replay = self._captured.stage(entries, divisors=present, fresh_slots=fresh_slots)
            if replay is not None:
                return StagedPass(entries=tuple(entries), slots=slots, fresh_slots=fresh_slots, stream=replay)
        batch = pack(entries, num_slots=self._bank.num_slots, device=self._bank.weights_RD.device)
        lora = self._bank.context(batch.segments, row_keys_T=batch.row_keys_T, fresh_slots=fresh_slots)
        return StagedPass(entries=tuple(entries), slots=slots, fresh_slots=fresh_slots, stream=(batch, lora))

    def run(
        self,
        entries: Sequence[SlotSample],
        divisors: Mapping[int, int],
        *,
        fresh_slots: frozenset[int],
        staged: StagedPass | None = None,
        recomputed: bool = False,
    ) -> Tensor:
        """Put the gradients of ``entries`` into the bank and return the terms of their groups, still on the device.

        Takes what :meth:`stage` takes, and what it made of the same arguments if that was done before.
        """
        if staged is None or not staged.is_for(entries, slots=self._bank.slot_table(), fresh_slots=fresh_slots):
            staged = self.stage(entries, divisors, fresh_slots=fresh_slots, recomputed=recomputed)
        samples = [entry.sample for entry in entries]
        if isinstance(staged.stream, StagedReplay):
            assert self._captured is not None, "who staged a replay has graphs"
            replayed = self._captured.replay(staged.stream)
            if replayed is None:
                # its graph was given up, or filled for another pass, since
                return self.run(entries, divisors, fresh_slots=fresh_slots, recomputed=recomputed)
            return self._objective.terms(replayed, samples)
        batch, lora = staged.stream
        bank = self._bank
        make_room(self._decoder, adapted=lora.factors, num_rank_rows=bank.num_rank_rows, num_rows=batch.num_rows)
        present = {entry.slot: divisors[entry.slot] for entry in entries}
        size = pass_size(batch, lora, decoder=self._decoder, recomputed=recomputed)
        with self._memory.observe(PassKind.TRAIN, size) as observed:
            losses_T = token_losses(self._decoder, batch, lora, gradient_checkpointing=recomputed)
            observed.forward_done()
            if not self._objective.sums_tokens:
                terms_G = self._objective.terms(losses_T, samples)
                weights = [1 / divisors[entry.slot] for entry in entries[:: self._objective.group_size]]
                terms_G.backward(torch.tensor(weights, dtype=terms_G.dtype, device=terms_G.device))
                return terms_G.detach()
            losses_T.backward(token_weights(batch, divisors=present, dtype=losses_T.dtype))
        return self._objective.terms(losses_T.detach(), samples)
