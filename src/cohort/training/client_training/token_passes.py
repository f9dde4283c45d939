"""A packed pass over data of several client models, each with a loss of its own.

The log-probability of every target is priced with its derivative in the hidden states while its logits are at hand, so
one forward pass serves any loss: the weight of each target follows from the loss afterwards.

Shapes:  T rows of the stream · M targets of all data · P positions with targets of a datum · K targets of a position
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.adapters.linear import LoraContext
from cohort.data.packing import PackedBatch, SlotSample, pack
from cohort.data.tokenised import Sample
from cohort.kernels.cross_entropy import price_rows, weighted_gradient
from cohort.kernels.staging import to_device_unwaited
from cohort.models.attention import PackedAttention
from cohort.models.decoder import Decoder
from cohort.models.pass_inputs.needed_rows import NeededRows
from cohort.training.backward_start import seeded
from cohort.training.client_training.datum import Datum, TokenLoss

__all__ = ["DatumResult", "SlotDatum", "measure_tokens", "train_tokens"]


Attends = Callable[[tuple[int, ...]], PackedAttention]


@dataclass(frozen=True, kw_only=True, eq=False)
class SlotDatum:
    """A datum on its way into a stream, with the slot of its model and the loss of its call.

    Attributes:
        row_keys: Dropout keys of its rows, int64 [L]; None where nothing is dropped.
    """

    slot: int
    datum: Datum
    loss: TokenLoss
    row_keys: NDArray[np.int64] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class DatumResult:
    """What a pass says of a datum.

    Attributes:
        logps: Log-probability of each target in nats, [P, K].
        terms: Each target's term of the loss, [P, K]; the datum's loss is their sum.
    """

    logps: NDArray[np.float64]
    terms: NDArray[np.float64]

    @property
    def loss(self) -> float:
        return float(self.terms.sum())


def train_tokens(
    decoder: Decoder,
    bank: AdapterBank,
    entries: Sequence[SlotDatum],
    *,
    fresh_slots: Collection[int],
    gradient_checkpointing: bool = False,
    attends: Attends = PackedAttention,
) -> list[DatumResult]:
    """Add the gradients of the data's losses to the bank and return what the pass found, in their order.

    Args:
        entries: Sorted by slot.
        fresh_slots: Slots whose gradients the pass writes over what the bank holds, where it can.
        gradient_checkpointing: Recompute the layers backwards instead of keeping their activations.
        attends: Makes the attention of sequences at given offsets.
    """
    priced = _Priced.of(
        decoder,
        bank,
        entries,
        fresh_slots=fresh_slots,
        trains=True,
        gradient_checkpointing=gradient_checkpointing,
        attends=attends,
    )
    leaf_M = priced.logps_M.detach().requires_grad_()
    terms_M = _terms(leaf_M, entries)
    (weights_M,) = torch.autograd.grad(terms_M.sum(), leaf_M)
    seeded(priced.hidden_TD, priced.gradient(weights_M)).backward()
    return priced.results(terms_M.detach())


@torch.no_grad()
def measure_tokens(
    decoder: Decoder, bank: AdapterBank, entries: Sequence[SlotDatum], *, attends: Attends = PackedAttention
) -> list[DatumResult]:
    """Return what a pass finds that keeps nothing; ``entries`` are sorted by slot, those of no adapter last."""
    priced = _Priced.of(decoder, bank, entries, fresh_slots=(), trains=False, attends=attends)
    return priced.results(_terms(priced.logps_M, entries))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Priced:
    """A pass behind its head: hidden states and the price of every target, first targets of all positions first."""

    entries: Sequence[SlotDatum]
    hidden_TD: Tensor
    logps_M: Tensor
    jacobian_MD: Tensor
    rows: Sequence[NDArray[np.int64]]
    columns: Sequence[NDArray[np.int64]]

    @classmethod
    def of(
        cls,
        decoder: Decoder,
        bank: AdapterBank,
        entries: Sequence[SlotDatum],
        *,
        fresh_slots: Collection[int],
        trains: bool,
        attends: Attends,
        gradient_checkpointing: bool = False,
    ) -> _Priced:
        device = bank.weights_RD.device
        batch = _packed(entries, num_slots=bank.num_slots, device=device)
        lora = bank.context(batch.segments, row_keys_T=batch.row_keys_T, fresh_slots=fresh_slots)
        hidden_TD = decoder.forward(
            batch.tokens_T,
            positions_T=batch.positions_T,
            attention=attends(batch.sequence_offsets),
            lora=lora,
            gradient_checkpointing=gradient_checkpointing,
            needed=_rows_with_targets(entries, batch) if _leaves_out_rows(decoder, lora) else None,
        )
        rows, columns, targets = _places(entries, batch.sequence_offsets)
        losses_M, jacobian_MD = price_rows(
            hidden_TD.detach(),
            head=decoder.head,
            targets_M=to_device_unwaited(np.concatenate(targets), device),
            rows_M=to_device_unwaited(np.concatenate(rows), device),
            logit_cap=decoder.config.logit_cap,
            with_gradient=trains,
            scales_M=_inverse_temperatures(entries, device=device),
        )
        # in the order of the data, each datum's targets position by position
        order = np.argsort(np.concatenate(columns), kind="stable")
        logps_M = -losses_M[to_device_unwaited(order, device)]
        return cls(
            entries=entries,
            hidden_TD=hidden_TD,
            logps_M=logps_M,
            jacobian_MD=jacobian_MD,
            rows=rows,
            columns=columns,
        )

    def gradient(self, weights_M: Tensor) -> Tensor:
        """Return the gradient of the losses in the hidden states; ``weights_M`` are those in the log-probabilities."""
        total_TD: Tensor | None = None
        start = 0
        for rows, columns in zip(self.rows, self.columns, strict=True):
            # a row once at a time: sums of several targets have one order
            stop = start + len(rows)
            device = weights_M.device
            rows_M = to_device_unwaited(rows, device)
            weights_T = weights_M.new_zeros(self.hidden_TD.shape[0])
            weights_T.index_copy_(0, rows_M, -weights_M[to_device_unwaited(columns, device)])
            part_TD = weighted_gradient(self.jacobian_MD[start:stop], rows_M=rows_M, weights_T=weights_T)
            total_TD = part_TD if total_TD is None else total_TD + part_TD
            start = stop
        assert total_TD is not None, "a pass has at least one datum"
        return total_TD.to(self.hidden_TD.dtype)

    def results(self, terms_M: Tensor) -> list[DatumResult]:
        """Wait for the pass and return what it found of each datum."""
        # float64 holds every float32 as it is
        logps, terms = torch.stack([self.logps_M.detach().double(), terms_M.double()]).cpu().numpy()
        found, start = [], 0
        for entry in self.entries:
            shape = entry.datum.targets.shape
            stop = start + entry.datum.targets.size
            found.append(DatumResult(logps=logps[start:stop].reshape(shape), terms=terms[start:stop].reshape(shape)))
            start = stop
        return found


def _packed(entries: Sequence[SlotDatum], *, num_slots: int, device: torch.device) -> PackedBatch:
    samples = [
        SlotSample(
            slot=entry.slot,
            # targets are the call's own, and not the next token
            sample=Sample(
                sample_id=0,
                tokens=entry.datum.tokens.astype(np.int32),
                trained=np.zeros(len(entry.datum.tokens), dtype=np.bool_),
            ),
            row_keys=entry.row_keys,
        )
        for entry in entries
    ]
    return pack(samples, num_slots=num_slots, device=device)


def _leaves_out_rows(decoder: Decoder, lora: LoraContext) -> bool:
    # the grouped kernels take the rows of next tokens alone, and these targets are the call's own
    return lora.tables is None and decoder.leaves_out_rows(lora)


def _rows_with_targets(entries: Sequence[SlotDatum], batch: PackedBatch) -> NeededRows | None:
    bounds = zip(entries, itertools.pairwise(batch.sequence_offsets), strict=True)
    return NeededRows.of(
        batch.segments, [np.arange(start + entry.datum.first, stop) for entry, (start, stop) in bounds]
    )


def _places(
    entries: Sequence[SlotDatum], offsets: Sequence[int]
) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]], list[NDArray[np.int64]]]:
    """Return, for the first targets of all positions, the second and so on: their rows, places in M and targets."""
    most = max(entry.datum.targets.shape[1] for entry in entries)
    rows: list[list[NDArray[np.int64]]] = [[] for _ in range(most)]
    columns: list[list[NDArray[np.int64]]] = [[] for _ in range(most)]
    targets: list[list[NDArray[np.int64]]] = [[] for _ in range(most)]
    start = 0
    for entry, offset in zip(entries, offsets[:-1], strict=True):
        num, each = entry.datum.targets.shape
        for column in range(each):
            first = offset + entry.datum.first
            rows[column].append(np.arange(first, first + num, dtype=np.int64))
            columns[column].append(start + np.arange(num, dtype=np.int64) * each + column)
            targets[column].append(entry.datum.targets[:, column])
        start += num * each
    return [np.concatenate(r) for r in rows], [np.concatenate(c) for c in columns], [np.concatenate(t) for t in targets]


def _inverse_temperatures(entries: Sequence[SlotDatum], *, device: torch.device) -> Tensor | None:
    """Return what the logits of each target are multiplied by, float32, first targets of all positions first.

    None where every temperature is 1. Logits and not hidden states: 16 bits would round the products.
    """
    if all(entry.datum.temperature == 1.0 for entry in entries):
        return None
    most = max(entry.datum.targets.shape[1] for entry in entries)
    scales = [
        np.full(entry.datum.targets.shape[0], 1.0 / entry.datum.temperature, dtype=np.float32)
        for column in range(most)
        for entry in entries
        if column < entry.datum.targets.shape[1]
    ]
    return to_device_unwaited(np.concatenate(scales), device)


def _terms(logps_M: Tensor, entries: Sequence[SlotDatum]) -> Tensor:
    """Return the term of each target [M].

    On a CPU each datum is computed by itself: elementwise operations there round by a number's place in its vector,
    and a term must have the same bits in every pack. Elsewhere data that share a loss are computed together.
    """
    sizes = [entry.datum.targets.size for entry in entries]
    pieces = logps_M.split(sizes)
    found: list[Tensor | None] = [None] * len(entries)
    for places in _together(entries, apart=logps_M.device.type == "cpu"):
        loss = entries[places[0]].loss
        names = entries[places[0]].datum.inputs
        stacked = np.stack(
            [np.concatenate([entries[place].datum.inputs[name].ravel() for place in places]) for name in names]
        )
        inputs: Mapping[str, Tensor] = dict(
            zip(names, to_device_unwaited(stacked, logps_M.device).to(logps_M.dtype), strict=True)
        )
        own_sizes = [sizes[place] for place in places]
        offsets = [0, *np.cumsum(own_sizes).tolist()]
        terms_M = loss.objective.terms(
            torch.cat([pieces[place] for place in places]), inputs=inputs, numbers=loss.numbers, offsets=offsets
        )
        for place, terms in zip(places, terms_M.split(own_sizes), strict=True):
            found[place] = terms
    return torch.cat([terms for terms in found if terms is not None])


def _together(entries: Sequence[SlotDatum], *, apart: bool) -> list[list[int]]:
    if apart:
        return [[place] for place in range(len(entries))]
    by_loss: dict[object, list[int]] = {}
    for place, entry in enumerate(entries):
        key = (entry.loss.objective.name, tuple(sorted(entry.loss.numbers.items())))
        by_loss.setdefault(key, []).append(place)
    return list(by_loss.values())
