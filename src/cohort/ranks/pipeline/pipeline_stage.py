"""One stage of a LoRA pipeline: some layers of the model, the factors of every adapter there, and its optimizer steps.

Micro-batches of many adapters pass the stages one behind the other; no stage waits for an adapter's optimizer step,
since the schedule keeps an adapter's batches as far apart as there are stages (the bubble lemma; one more where they
share the loss head). Between two stages travels one tensor a micro-batch and direction: the sum of the residual stream
and what the next norm would add to it.

Clipping couples the stages: a step needs the norm over all of them. Backward messages carry the running sums of squares
of the adapters whose batch ends in their micro-batch, from the last stage to the first, which then knows the norm and
steps. The forward message of the first micro-batch that the next batch may begin with carries it down, and each stage
steps before that pass. So a step costs no message of its own. mLoRA (3.2) and LoRAFusion (4.2) step each stage by
itself and clip nothing.

Shapes:  T rows of a micro-batch · D hidden width · N slots of the bank
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.adapters.linear import LoraContext
from cohort.data.packing import PackedBatch, SlotSample, pack
from cohort.kernels.adamw.reference import NORM_EPS
from cohort.kernels.cross_entropy import linear_cross_entropy, weighted_gradient
from cohort.models.attention import PackedAttention
from cohort.models.decoder import Decoder
from cohort.models.spare_columns import reserve_spare_columns
from cohort.ranks.pipeline.pass_clock import PassClock
from cohort.ranks.pipeline.pipeline_window import PipelineMicroBatch, is_separated
from cohort.ranks.pipeline.shared_head import HeadRows, SharedHead
from cohort.ranks.pipeline.stage_links import StageLinks
from cohort.scheduling.pipelines.pipeline_schedule import Direction, batch_distance, stage_order
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.passes import terms_and_weights
from cohort.training.step_samples import Resident
from cohort.training.token_losses import rows_with_losses

__all__ = ["PipelineStage"]


@dataclass(frozen=True, kw_only=True)
class _InFlight:
    """A micro-batch between its forward and its backward pass on a stage."""

    entered_TD: Tensor | None
    output: Tensor
    weights: Tensor | None = None
    head: HeadRows | None = None


class PipelineStage:
    """Runs the passes and optimizer steps of one stage, in its static order.

    Attributes:
        terms: On the last stage, the terms of the groups of each micro-batch of the last window, in its order.
        norms: By slot, the norms of the gradients of the steps of the last window, before clipping.
        num_recomputed: Training passes that used gradient checkpointing.
        clock: When the passes of the last window ran.
    """

    def __init__(
        self,
        decoder: Decoder,
        bank: AdapterBank,
        *,
        stage: int,
        num_stages: int,
        links: StageLinks,
        optimizer: Optimizer,
        head_shares: Sequence[float] = (),
        is_recomputed: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Join a decoder of some layers with the bank of their linears; slots are numbered alike on all stages.

        Args:
            head_shares: Of the loss head's rows, by stage, where all stages have it and windows may share it.
            is_recomputed: Whether a pass of this many tokens uses gradient checkpointing.
        """
        self._decoder, self._bank, self._links, self._optimizer = decoder, bank, links, optimizer
        self._stage, self._num_stages = stage, num_stages
        self._is_recomputed = is_recomputed
        self._shared = SharedHead(decoder, stage=stage, shares=head_shares, links=links) if head_shares else None
        self._head: SharedHead | None = None
        self._distance = num_stages
        self._residents: dict[int, Resident] = {}
        self._fresh: set[int] = set()
        self._norms: list[tuple[int, Tensor]] = []
        self.terms: list[Tensor] = []
        self.norms: dict[int, list[float]] = {}
        self.num_recomputed = 0
        self.clock = PassClock(bank.weights_RD.device, stage=stage)

    def load(self, resident: Resident) -> None:
        """Take in a trial that is in the stage's bank."""
        self._residents[resident.slot] = resident
        self._fresh.add(resident.slot)

    def drop(self, slot: int) -> None:
        """Forget the trial of a slot."""
        del self._residents[slot]
        self._fresh.discard(slot)

    def flush(self) -> None:
        """Wait until all messages of passes that only measure have left."""
        self._links.flush()

    @property
    def is_last(self) -> bool:
        return self._stage == self._num_stages - 1

    def run_window(self, micro_batches: Sequence[PipelineMicroBatch], *, shares_head: bool = False) -> None:
        """Pass all micro-batches and take all steps that end in them; nothing is in flight afterwards.

        Args:
            shares_head: Whether the stages share the loss head in this window; all of them have it.

        Raises:
            ValueError: a slot's next batch begins before all stages can have stepped.
        """
        self._distance = batch_distance(self._num_stages, shares_head=shares_head)
        if not is_separated(micro_batches, num_stages=self._distance):
            raise ValueError(f"two batches of one slot stand less than {self._distance} micro-batches apart")
        self._head = self._shared if shares_head else None
        self.terms, self.norms, self._norms = [], {}, []
        self.clock.start_window()
        in_flight: dict[int, _InFlight | None] = {}
        known_N: dict[int, Tensor] = {}
        count = len(micro_batches)
        for each in stage_order(count, stage=self._stage, num_stages=self._num_stages, shares_head=shares_head):
            number = each.micro_batch
            if each.direction is Direction.FORWARD:
                self._take_norms(number, micro_batches, known_N)
                in_flight[number] = self._forward(number, micro_batches[number])
            elif each.direction is Direction.HEAD:
                self._price(number, in_flight[number])
            else:
                squares_N = self._backward(number, micro_batches[number], in_flight.pop(number))
            self.clock.end(each)
            if each.direction is Direction.BACKWARD and self._stage == 0:
                known_N[number] = squares_N.sqrt()
                self._step(micro_batches[number].ends, known_N[number])
        # the norms of the last batches, which no forward pass of this window follows
        for number in range(count, count + self._distance):
            self._take_norms(number, micro_batches, known_N)
        self._links.flush()
        # the host waits here alone, once everything is launched
        if self._norms:
            found = torch.stack([norm for _, norm in self._norms]).tolist()
            for (slot, _), norm in zip(self._norms, found, strict=True):
                self.norms.setdefault(slot, []).append(norm)

    @torch.no_grad()
    def measure(self, entries: Sequence[SlotSample], *, number: int) -> Tensor:
        """Pass samples forward only; return the token losses [T], zeros on all but the last stage.

        All stages do so with the same samples and the same ``number``, which no other pass in flight has.
        """
        bank, decoder = self._bank, self._decoder
        batch = pack(entries, num_slots=bank.num_slots, device=bank.weights_RD.device)
        # no row keys: an evaluation drops nothing
        residual_TD, delta_TD = self._layers(batch, bank.context(batch.segments), self._entered(batch, number))
        if self.is_last:
            return self._token_losses(batch, decoder.final_norm(residual_TD, delta_TD))
        boundary_TD = residual_TD if delta_TD is None else residual_TD + delta_TD
        self._links.send(boundary_TD, to=self._stage + 1, number=number, direction=Direction.FORWARD)
        return torch.zeros(batch.num_rows, device=bank.weights_RD.device)

    def _take_norms(self, number: int, micro_batches: Sequence[PipelineMicroBatch], known_N: dict[int, Tensor]) -> None:
        """Step what ended so far before that its next batch may begin, where the norms are new, and pass them on."""
        ended = number - self._distance
        if ended < 0 or ended >= len(micro_batches) or not (ends := micro_batches[ended].ends):
            return
        if self._stage > 0:
            into_N = self._by_slot()
            norms_N = self._links.receive(
                into_N, sender=self._stage - 1, number=-1 - number, direction=Direction.FORWARD
            )
            self._step(ends, norms_N)
        else:
            norms_N = known_N.pop(ended)
        if not self.is_last:
            self._links.send(norms_N, to=self._stage + 1, number=-1 - number, direction=Direction.FORWARD)

    def _forward(self, number: int, micro_batch: PipelineMicroBatch) -> _InFlight | None:
        if not micro_batch.entries:
            self.clock.begin()
            return None
        decoder, bank = self._decoder, self._bank
        batch = pack(micro_batch.entries, num_slots=bank.num_slots, device=bank.weights_RD.device)
        present = {entry.slot for entry in micro_batch.entries}
        fresh = frozenset(present & self._fresh) if bank.writes_gradients else frozenset[int]()
        self._fresh -= present
        lora = bank.context(batch.segments, row_keys_T=batch.row_keys_T, fresh_slots=fresh)
        recomputed = self._is_recomputed(sum(len(entry.sample.tokens) for entry in micro_batch.entries))
        self.num_recomputed += recomputed
        reserve_spare_columns(decoder, adapted=lora.factors, num_rank_rows=bank.num_rank_rows, num_rows=batch.num_rows)
        stream_TD = self._entered(batch, number).requires_grad_()
        self.clock.begin()
        entered_TD = None if self._stage == 0 else stream_TD
        residual_TD, delta_TD = self._layers(batch, lora, stream_TD, recomputed=recomputed)
        if self.is_last:
            hidden_TD = decoder.final_norm(residual_TD, delta_TD)
            if self._head is not None:
                handed = self._head.hold(batch, hidden_TD, number=number)
                return _InFlight(entered_TD=entered_TD, output=hidden_TD, head=handed)
            losses_T = self._token_losses(batch, hidden_TD)
            weights_T = self._weights(batch, micro_batch, losses_T.detach())
            return _InFlight(entered_TD=entered_TD, output=losses_T, weights=weights_T)
        boundary_TD = residual_TD if delta_TD is None else residual_TD + delta_TD
        self._links.send(boundary_TD.detach(), to=self._stage + 1, number=number, direction=Direction.FORWARD)
        head = None if self._head is None else self._head.hold(batch, None, number=number)
        return _InFlight(entered_TD=entered_TD, output=boundary_TD, head=head)

    def _price(self, number: int, held: _InFlight | None) -> None:
        """Compute the stage's share of the loss head."""
        if held is None:
            self.clock.begin()
            return
        assert self._head is not None, "the window shares the head"
        assert held.head is not None, "and so every pass of it"
        self._head.price(held.head, number=number, clock=self.clock)

    def _entered(self, batch: PackedBatch, number: int) -> Tensor:
        """Return the stream [T, D] that enters the stage's layers."""
        decoder = self._decoder
        if self._stage == 0:
            return decoder.embed(batch.tokens_T)
        into_TD = torch.empty(batch.num_rows, decoder.config.hidden_size, dtype=decoder.dtype, device=decoder.device)
        return self._links.receive(into_TD, sender=self._stage - 1, number=number, direction=Direction.FORWARD)

    def _layers(
        self, batch: PackedBatch, lora: LoraContext, stream_TD: Tensor, *, recomputed: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        return self._decoder.run_layers(
            stream_TD,
            positions_T=batch.positions_T,
            attention=PackedAttention(batch.sequence_offsets),
            lora=lora,
            gradient_checkpointing=recomputed,
            needed=rows_with_losses(batch, lora, decoder=self._decoder) if self.is_last else None,
        )

    def _token_losses(self, batch: PackedBatch, hidden_TD: Tensor) -> Tensor:
        return linear_cross_entropy(
            hidden_TD,
            head=self._decoder.head,
            targets_T=batch.targets_T,
            trained_rows_M=batch.trained_rows_M,
            logit_cap=self._decoder.config.logit_cap,
        )

    def _by_slot(self) -> Tensor:
        return torch.zeros(self._bank.num_slots, dtype=torch.float64, device=self._bank.weights_RD.device)

    def _weights(self, batch: PackedBatch, micro_batch: PipelineMicroBatch, losses_T: Tensor) -> Tensor:
        """Return what each token's loss [T] counts; its terms are noted."""
        terms_G, weights_T = terms_and_weights(losses_T, batch, micro_batch.entries, micro_batch.terms)
        self.terms.append(terms_G)
        return weights_T

    def _grads(self, number: int, micro_batch: PipelineMicroBatch, held: _InFlight) -> Tensor | None:
        """Return the gradient of a pass's output, once it is there."""
        if not self.is_last:
            into_TD = torch.empty_like(held.output)
            sender = self._stage + 1
            return self._links.receive(into_TD, sender=sender, number=number, direction=Direction.BACKWARD)
        if self._head is None or held.head is None:
            return held.weights
        losses_T, jacobian_MD = self._head.collect(held.head, number=number)
        batch = held.head.batch
        weights_T = self._weights(batch, micro_batch, losses_T)
        return weighted_gradient(jacobian_MD, rows_M=batch.trained_rows_M, weights_T=weights_T)

    def _backward(self, number: int, micro_batch: PipelineMicroBatch, held: _InFlight | None) -> Tensor:
        """Run a backward pass; return the sums of squares [N] so far of the slots whose batch ends with it."""
        squares_N = self._by_slot()
        if held is not None:
            grads = self._grads(number, micro_batch, held)
            self.clock.begin()
            held.output.backward(grads)
        else:
            self.clock.begin()
        if micro_batch.ends:
            if not self.is_last:
                squares_N = self._links.receive(
                    squares_N, sender=self._stage + 1, number=-1 - number, direction=Direction.BACKWARD
                )
            self._bank.before_update(micro_batch.ends)
            for slot in micro_batch.ends:
                own = self._bank.grads_RD[self._bank.rank_rows(slot)]
                squares_N[slot] += own.double().square().sum()
        if self._stage > 0:
            if held is not None:
                assert held.entered_TD is not None, "stages behind the first are entered"
                assert held.entered_TD.grad is not None, "the stream has a gradient"
                self._links.send(held.entered_TD.grad, to=self._stage - 1, number=number, direction=Direction.BACKWARD)
            if micro_batch.ends:
                self._links.send(squares_N, to=self._stage - 1, number=-1 - number, direction=Direction.BACKWARD)
        return squares_N

    def _step(self, slots: Sequence[int], norms_N: Tensor) -> None:
        """Clip and step the factors of ``slots`` on this stage."""
        if not slots:
            return
        residents = []
        for slot in slots:
            resident, grads_RD = self._residents[slot], self._bank.grads_RD[self._bank.rank_rows(slot)]
            norm = norms_N[slot].to(grads_RD.dtype)
            self._norms.append((slot, norm))
            # as the optimizer's own clipping; 0 is none
            if resident.spec.max_grad_norm:
                grads_RD.mul_(torch.clamp(resident.spec.max_grad_norm / (norm + NORM_EPS), max=1.0))
            residents.append(replace(resident, spec=replace(resident.spec, max_grad_norm=0.0)))
        self._optimizer.update(self._bank, residents)
        self._bank.after_update(slots)
        for slot in slots:
            self._residents[slot].step += 1
            self._fresh.add(slot)
