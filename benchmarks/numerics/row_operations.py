"""Operations of a row, a sequence or a slot: the same ones alone and among others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from benchmarks.numerics.lora_terms import Tenant, term_pack
from benchmarks.numerics.places import Place, Row, changed
from cohort.kernels.adamw import SlotUpdate, adamw_step
from cohort.kernels.attention import AttentionTiles, RecordedTiles, packed_attention
from cohort.kernels.backend import Backend
from cohort.kernels.cross_entropy import linear_cross_entropy
from cohort.kernels.packed_mlp import packed_mlp
from cohort.kernels.rms_norm import add_rms_norm, rms_norm
from cohort.kernels.rope import apply_rope
from cohort.kernels.swiglu import swiglu
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from cohort.training.token_losses import sequence_sums

__all__ = ["row_rows"]


def row_rows(place: Place) -> Iterator[Row]:
    """Norms, rotary embedding, gate, attention, loss, sums of losses and the optimizer."""
    many, few, width, heads, kv, head = (200, 48, 64, 4, 2, 16) if place.tiny else (3000, 200, 2048, 32, 8, 64)
    x, r = place.draw(many, width, seed=1), place.draw(many, width, seed=2)
    gain = place.draw(width, seed=3)
    own = slice(37, 37 + few)
    triton = Backend.TRITON
    yield _alone("rms norm", lambda at: rms_norm(x[at], weight_D=gain, eps=1e-5, backend=triton), own)
    yield _alone(
        "add and norm",
        lambda at: add_rms_norm(x[at], residual_TD=r[at], weight_D=gain, eps=1e-5, backend=triton)[0],
        own,
    )
    yield _alone(
        "norm, backward",
        lambda at: _gradient(lambda leaf: rms_norm(leaf, weight_D=gain, eps=1e-5, backend=triton), x[at], r[at]),
        own,
    )
    yield _alone("swiglu", lambda at: swiglu(x[at], backend=triton), own)
    yield _alone(
        "swiglu, backward",
        lambda at: _gradient(lambda leaf: swiglu(leaf, backend=triton), x[at], r[at, : width // 2]),
        own,
    )
    q, k, v = (place.draw(many, count, head, seed=4 + i) for i, count in enumerate((heads, kv, kv)))
    cos, sin = (place.draw(many, head, seed=8 + i) for i in range(2))
    yield _alone(
        "rope",
        lambda at: apply_rope(q[at], k[at], cos_TE=cos[at].float(), sin_TE=sin[at].float(), backend=triton)[0],
        own,
    )
    yield from _attention_rows(q, k, v, place=place, few=few, many=many)
    yield from _loss_rows(place, many=many, few=few, width=width)
    yield from _adamw_rows(place)


def _alone(operation: str, run: Callable[[slice], Tensor], own: slice) -> Row:
    whole = run(slice(None))
    return {"operation": operation, "beside": "other rows", "changed": changed(run(own), whole[own])}


def _gradient(run: Callable[[Tensor], Tensor], x: Tensor, dy: Tensor) -> Tensor:
    leaf = x.detach().clone().requires_grad_()
    run(leaf).backward(dy.contiguous())
    assert leaf.grad is not None, "a leaf"
    return leaf.grad


def _attention_rows(q: Tensor, k: Tensor, v: Tensor, *, place: Place, few: int, many: int) -> Iterator[Row]:
    dy = place.draw(*q.shape, seed=20)

    def run(at: slice, offsets: tuple[int, ...], *, recorded: bool) -> list[Tensor]:
        leaves = [t[at].clone().requires_grad_() for t in (q, k, v)]
        num_rows = at.stop - at.start
        tiles = AttentionTiles(offsets, device=place.device)
        if recorded:
            capacity = RecordedTiles.capacity(num_rows=num_rows, num_sequences=len(offsets))
            entries = RecordedTiles.entries(offsets, num_rows=num_rows, capacity=capacity)
            tiles = RecordedTiles(torch.from_numpy(entries).to(place.device), num_rows=num_rows)
        out = packed_attention(*leaves, tiles=tiles)
        out.backward(dy[at])
        return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    start = many // 3
    alone = run(slice(start, start + few), (0, few), recorded=False)
    offsets = (0, start // 2, start, start + few, many - 7)
    for recorded in (False, True):
        found = run(slice(0, many), offsets, recorded=recorded)
        for name, one, other in zip(("O", "dQ", "dK", "dV"), found, alone, strict=True):
            form = "recorded tiles" if recorded else "tiles"
            share = changed(one[start : start + few], other)
            yield {"operation": f"attention {name}", "form": form, "beside": "other sequences", "changed": share}


def _loss_rows(place: Place, *, many: int, few: int, width: int) -> Iterator[Row]:
    vocabulary = 300 if place.tiny else 128256
    head = FrozenLinear(place.draw(vocabulary, width, seed=30, std=width**-0.5))
    hidden = place.draw(many, width, seed=31)
    targets = torch.arange(many, device=place.device) * 7919 % vocabulary

    def run(at: slice) -> tuple[Tensor, Tensor]:
        leaf = hidden[at].clone().requires_grad_()
        rows = torch.arange(leaf.shape[0], device=place.device)
        losses = linear_cross_entropy(leaf, head=head, targets_T=targets[at], trained_rows_M=rows)
        losses.backward(torch.full_like(losses, 0.01))
        assert leaf.grad is not None, "a leaf"
        return losses.detach(), leaf.grad

    own = slice(37, 37 + few)
    for name, one, other in zip(("losses", "gradient"), run(own), run(slice(0, many)), strict=True):
        share = changed(one, other[own])
        yield {"operation": f"loss head, {name}", "form": "blas", "beside": "other rows", "changed": share}
    losses = run(slice(0, many))[0]
    config = [few, 3, many - few - 3]
    samples = [type("Lengths", (), {"tokens": range(n)})() for n in config]
    sums = sequence_sums(losses, samples)
    alone = sequence_sums(losses[few + 3 :].clone(), samples[2:])
    yield {"operation": "sums of losses", "beside": "other samples", "changed": changed(alone[0], sums[2])}


def _adamw_rows(place: Place) -> Iterator[Row]:
    width = 96 if place.tiny else 300_000
    grads, params = (place.draw(64, width, seed=40 + i).float() for i in range(2))

    def run(bank: slice, slots: Sequence[SlotUpdate]) -> tuple[Tensor, Tensor]:
        own = params[bank].clone()
        moments = torch.zeros_like(own), torch.zeros_like(own)
        norms = adamw_step(
            own, grads_RD=grads[bank].clone(), exp_avg_RD=moments[0], exp_avg_sq_RD=moments[1], slots=slots,
            backend=Backend.TRITON,
        )  # fmt: skip
        return own, norms

    def slot(start: int, rank: int) -> SlotUpdate:
        return SlotUpdate(row_start=start, rank=rank, learning_rate=1e-3, step=3, weight_decay=0.01, max_grad_norm=0.5)

    alone, norm = run(slice(32, 48), [slot(0, 10)])
    packed, norms = run(slice(0, 64), [slot(0, 20), slot(32, 10), slot(48, 16)])
    yield {"operation": "clip norm", "beside": "other slots", "changed": changed(norms[1], norm[0])}
    yield {"operation": "adamw", "beside": "other slots", "changed": changed(packed[32:42], alone[:10])}
    yield from _mlp_rows(place)


def _mlp_rows(place: Place) -> Iterator[Row]:
    """A feed-forward block, fused and composed, alone and among others (its frozen products are the BLAS's)."""
    width, inner = (32, 48) if place.tiny else (2048, 8192)
    gate_up = FrozenLinear(place.draw(2 * inner, width, seed=50, std=width**-0.5))
    down = FrozenLinear(place.draw(width, inner, seed=51, std=inner**-0.5))
    trial = Tenant(seed=1, rank=8, dropout=0.0, lengths=(40, 11) if place.tiny else (300, 77))
    found: dict[str, Tensor] = {}
    for what, ranks in (("alone", ()), ("ranks of 8", (8, 8)), ("ranks of 128", (128, 128))):
        others = [Tenant(seed=2 + i, rank=r, dropout=0.0, lengths=(100,)) for i, r in enumerate(ranks)]
        both = term_pack(place, [trial, *others], own=0, num_in=width, widths=(inner, inner))
        last = term_pack(place, [trial, *others], own=0, num_in=inner, widths=(width,))
        y = packed_mlp(
            both.x_TK, gate_up=gate_up, gate_up_parts=both.parts, down=down, down_parts=last.parts, slots=both.slots,
            segments=both.segments, tables=both.tables, backend=Backend.TRITON,
        )  # fmt: skip
        found[what] = y[both.of_trial]
        share = changed(found[what], found["alone"])
        yield {"operation": "feed-forward block", "form": "as chosen", "beside": what, "changed": share}
