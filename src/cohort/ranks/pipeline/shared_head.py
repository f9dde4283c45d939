"""The loss head of a pipeline whose stages share its rows: whole layers cannot even it out.

After its forward pass the last stage sends the others the final hidden states of their rows. Each prices its own, and
the last stage's backward pass begins with the losses and the gradients of all. What a row costs depends on no other
row, so all have the bits that they would have on the last stage.

Shapes:  T rows of a micro-batch · M trained rows, and m those of one stage · D hidden width
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.data.packing import PackedBatch
from cohort.kernels.cross_entropy import price_rows
from cohort.models.decoder import Decoder
from cohort.ranks.pipeline.pass_clock import PassClock
from cohort.ranks.pipeline.stage_links import StageLinks
from cohort.scheduling.pipelines.pipeline_schedule import Direction
from cohort.scheduling.pipelines.stage_balance import divide_rows

__all__ = ["HeadRows", "SharedHead"]


@dataclass(kw_only=True)
class HeadRows:
    """The trained rows of a micro-batch in flight, as one stage has them.

    Attributes:
        batch: The micro-batch.
        parts: The places among its trained rows of each stage.
        hidden_TD: On the last stage, the final hidden states.
        priced: Losses [m] and gradients [m, D] of the stage's own, once they are computed.
    """

    batch: PackedBatch
    parts: tuple[range, ...]
    hidden_TD: Tensor | None = None
    priced: tuple[Tensor, Tensor] | None = None


class SharedHead:
    """One stage's share."""

    def __init__(self, decoder: Decoder, *, stage: int, shares: Sequence[float], links: StageLinks) -> None:
        """Share the head of ``decoder``, which every stage has.

        Args:
            shares: Of the rows, by stage.
        """
        self._decoder, self._links = decoder, links
        self._stage, self._last, self._shares = stage, len(shares) - 1, tuple(shares)

    def hold(self, batch: PackedBatch, hidden_TD: Tensor | None, *, number: int) -> HeadRows:
        """Return the rows of a micro-batch after its forward pass; the last stage sends the others theirs."""
        held = HeadRows(batch=batch, parts=divide_rows(batch.trained_rows_M.shape[0], self._shares))
        if hidden_TD is not None:
            held.hidden_TD = hidden_TD.detach()
            for stage, part in enumerate(held.parts[:-1]):
                if part:
                    rows_mD = held.hidden_TD.index_select(0, batch.trained_rows_M[part.start : part.stop])
                    self._links.send(rows_mD, to=stage, number=number, direction=Direction.HEAD)
        return held

    def price(self, held: HeadRows, *, number: int, clock: PassClock) -> None:
        """Compute the stage's own rows, and send the last stage what came of them."""
        part, batch = held.parts[self._stage], held.batch
        rows_m = batch.trained_rows_M[part.start : part.stop]
        targets_m, hidden_TD = batch.targets_T.index_select(0, rows_m), held.hidden_TD
        if part and hidden_TD is None:
            width = self._decoder.config.hidden_size
            into_mD = torch.empty(len(part), width, dtype=self._decoder.dtype, device=self._decoder.device)
            hidden_TD = self._links.receive(into_mD, sender=self._last, number=number, direction=Direction.HEAD)
            rows_m = torch.arange(len(part), device=self._decoder.device)
        clock.begin()
        if hidden_TD is None:
            return
        held.priced = price_rows(
            hidden_TD,
            head=self._decoder.head,
            targets_M=targets_m,
            rows_M=rows_m,
            logit_cap=self._decoder.config.logit_cap,
        )
        if self._stage < self._last:
            losses_m, gradients_mD = held.priced
            self._links.send(losses_m, to=self._last, number=-1 - number, direction=Direction.HEAD)
            self._links.send(gradients_mD, to=self._last, number=number, direction=Direction.HEAD)

    def collect(self, held: HeadRows, *, number: int) -> tuple[Tensor, Tensor]:
        """Return the token losses [T] and the gradients [M, D] of all stages' rows, on the last stage."""
        assert held.priced is not None, "the last stage has priced its own rows"
        losses, gradients = [], []
        own_losses_m, own_gradients_mD = held.priced
        for stage, part in enumerate(held.parts[:-1]):
            if part:
                into_m, into_mD = (own.new_empty(len(part), *own.shape[1:]) for own in held.priced)
                losses.append(self._links.receive(into_m, sender=stage, number=-1 - number, direction=Direction.HEAD))
                gradients.append(self._links.receive(into_mD, sender=stage, number=number, direction=Direction.HEAD))
        losses_M = torch.cat([*losses, own_losses_m])
        losses_T = losses_M.new_zeros(held.batch.num_rows).index_copy_(0, held.batch.trained_rows_M, losses_M)
        return losses_T, torch.cat([*gradients, own_gradients_mD])
