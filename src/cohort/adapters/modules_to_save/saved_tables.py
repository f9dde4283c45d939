"""Each slot's own embedding and head in a packed pass: its rows alone read them, and gradients reach them alone.

Shapes:  T rows of the stream · B rows whose next token is picked · V vocabulary · D hidden width
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.adapters.modules_to_save.saved_modules import EMBEDDING, HEAD, SavedModules
from cohort.kernels.cross_entropy import TrainedHead, add_head_gradient, price_rows, weighted_gradient
from cohort.kernels.segments import SegmentTable

__all__ = ["SavedTables", "own_embeddings", "own_head_losses", "own_logits", "slots_with"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedTables:
    """The tables of one slot.

    Attributes:
        tables: What products read, each [V, D], by the module's name.
        gradients: Where their gradients are added, of the same names; none where nothing is trained.
    """

    slot: int
    tables: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]

    @classmethod
    def of(
        cls, slot: int, saved: SavedModules, *, rows: slice, compute_RD: Tensor, grads_RD: Tensor | None
    ) -> SavedTables:
        """Return the tables that stand in the rank rows ``rows`` of a bank; without ``grads`` nothing is trained."""
        return cls(
            slot=slot,
            tables={name: saved.table(compute_RD[rows], name) for name in saved.names},
            gradients={} if grads_RD is None else {name: saved.table(grads_RD[rows], name) for name in saved.names},
        )


def slots_with(saved: Sequence[SavedTables], name: str, segments: SegmentTable) -> tuple[SavedTables, ...]:
    """Return those that have the module and rows in the stream."""
    return tuple(own for own in saved if name in own.tables and _count(segments.rows(own.slot)))


def own_embeddings(
    embedded_TD: Tensor,
    tokens_T: Tensor,
    *,
    saved: Sequence[SavedTables],
    segments: SegmentTable,
    scale: float = 1.0,
    padding_id: int | None = None,
) -> Tensor:
    """Return embedded tokens with the rows of each slot that has a table of its own looked up there.

    Args:
        embedded_TD: By the frozen table. A constant: nothing below the stream is trained but these tables.
        scale: What looked-up rows are multiplied by.
        padding_id: A token whose row gets no gradient, as ``torch.nn.Embedding`` has it for a ``padding_idx``.
    """
    owns = slots_with(saved, EMBEDDING, segments)
    if not owns:
        return embedded_TD
    result: Tensor = _OwnEmbeddings.apply(embedded_TD, tokens_T, owns, segments, scale, padding_id)
    return result


def own_head_losses(
    hidden_TD: Tensor,
    *,
    owns: Sequence[SavedTables],
    targets_T: Tensor,
    runs: Sequence[Sequence[Tensor]],
    logit_cap: float | None,
) -> Tensor:
    """Return the losses [T] of the rows of slots with a head of their own, and 0 on all others.

    Differentiable in ``hidden``; the gradients of the tables are added where each has its place.

    Args:
        owns: Slots with a head.
        runs: For each of them the int64 numbers of its trained rows, in runs whose gradients are summed one by one.
    """
    result: Tensor = _OwnHeadLosses.apply(
        hidden_TD, targets_T, tuple(owns), runs, logit_cap, torch.is_grad_enabled() and hidden_TD.requires_grad
    )
    return result


@torch.no_grad()
def own_logits(
    logits_BV: Tensor, hidden_BD: Tensor, *, saved: Sequence[SavedTables], slots: Sequence[int], logit_cap: float | None
) -> Tensor:
    """Write the logits of rows whose slot has a head of its own over those of the frozen head, in place.

    Args:
        slots: Of each row.
    """
    for own in saved:
        rows = [row for row, slot in enumerate(slots) if slot == own.slot]
        if HEAD not in own.tables or not rows:
            continue
        rows_B = torch.tensor(rows, device=hidden_BD.device)
        # a row's bits are its own in a product of at least 32 rows, a multiple of 16
        padded = max(32, -(-len(rows) // 16) * 16)
        chunk_PD = hidden_BD.new_zeros(padded, hidden_BD.shape[1])
        chunk_PD[: len(rows)] = hidden_BD[rows_B]
        found_BV = TrainedHead(own.tables[HEAD]).forward(chunk_PD)[: len(rows)]
        logits_BV[rows_B] = found_BV if logit_cap is None else logit_cap * torch.tanh(found_BV / logit_cap)
    return logits_BV


def _count(rows: slice) -> int:
    return int(rows.stop - rows.start)


class _OwnEmbeddings(torch.autograd.Function):
    """``forward(embedded, tokens, owns, segments, scale, padding_id) -> embedded``."""

    @staticmethod
    def forward(
        ctx: Any,
        embedded_TD: Tensor,
        tokens_T: Tensor,
        owns: tuple[SavedTables, ...],
        segments: SegmentTable,
        scale: float,
        padding_id: int | None,
    ) -> Tensor:
        ctx.save_for_backward(tokens_T)
        ctx.owns, ctx.segments, ctx.scale, ctx.padding_id = owns, segments, scale, padding_id
        result_TD = embedded_TD.clone()
        for own in owns:
            rows = segments.rows(own.slot)
            looked_up = F.embedding(tokens_T[rows], own.tables[EMBEDDING])
            result_TD[rows] = looked_up if scale == 1.0 else looked_up * scale
        return result_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_TD: Tensor) -> tuple[Tensor | None, ...]:
        (tokens_T,) = ctx.saved_tensors
        for own in ctx.owns:
            rows, sink_VD = ctx.segments.rows(own.slot), own.gradients[EMBEDDING]
            tokens, d_LD = tokens_T[rows], d_TD[rows].to(sink_VD.dtype)
            if ctx.scale != 1.0:
                d_LD = d_LD * ctx.scale
            if ctx.padding_id is not None:
                d_LD = d_LD.masked_fill((tokens == ctx.padding_id).unsqueeze(1), 0.0)
            if d_TD.is_cuda:
                # sorted by token there, so that a sum has one order
                sink_VD.index_put_((tokens,), d_LD, accumulate=True)
            else:
                # row after row, so that no micro-batch changes the order of a sum
                sink_VD.index_add_(0, tokens, d_LD)
        return None, None, None, None, None, None


class _OwnHeadLosses(torch.autograd.Function):
    """``forward(hidden, targets, owns, runs, logit_cap, with_gradient) -> losses``."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        targets_T: Tensor,
        owns: tuple[SavedTables, ...],
        runs: Sequence[Sequence[Tensor]],
        logit_cap: float | None,
        with_gradient: bool,  # noqa: FBT001 - autograd passes arguments by place
    ) -> Tensor:
        losses_T = torch.zeros(
            hidden_TD.shape[0], dtype=torch.promote_types(hidden_TD.dtype, torch.float32), device=hidden_TD.device
        )
        kept = [hidden_TD, targets_T]
        for own, of_slot in zip(owns, runs, strict=True):
            rows_M = torch.cat([*of_slot]) if of_slot else targets_T.new_empty(0)
            losses_M, jacobian_MD = price_rows(
                hidden_TD,
                head=TrainedHead(own.tables[HEAD]),
                targets_M=targets_T.index_select(0, rows_M),
                rows_M=rows_M,
                logit_cap=logit_cap,
                with_gradient=with_gradient,
            )
            losses_T.index_copy_(0, rows_M, losses_M)
            kept += [rows_M, jacobian_MD]
        ctx.save_for_backward(*kept)
        ctx.owns, ctx.runs, ctx.logit_cap = owns, runs, logit_cap
        return losses_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlosses_T: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TD, targets_T, *kept = ctx.saved_tensors
        dhidden_TD = torch.zeros_like(hidden_TD)
        for own, of_slot, rows_M, jacobian_MD in zip(ctx.owns, ctx.runs, kept[::2], kept[1::2], strict=True):
            # zero on the rows of other slots, whose bits stay theirs
            dhidden_TD += weighted_gradient(jacobian_MD, rows_M=rows_M, weights_T=dlosses_T)
            add_head_gradient(
                own.gradients[HEAD],
                hidden_TD=hidden_TD,
                head=TrainedHead(own.tables[HEAD]),
                targets_T=targets_T,
                weights_T=dlosses_T,
                runs=of_slot,
                logit_cap=ctx.logit_cap,
            )
        return dhidden_TD, None, None, None, None, None
