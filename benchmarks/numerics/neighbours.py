"""What the bits of a step depend on: each operation on random packs, the same rows with other neighbours.

``python -m benchmarks.numerics.neighbours [--sections product term inside rows step] [--out RESULT.json] [--tiny]``.
An operation runs on the rows of one trial alone and again among others; a row of the result names the operation, its
form, what changed around the trial, and the share of the trial's entries whose bits changed. ``--tiny`` tries the
script out on any device; a CPU takes Triton's interpreter (``TRITON_INTERPRET=1``).
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.llama_shapes import decoder_config, gsm8k_rows, random_decoder
from benchmarks.measure import RESULTS, print_table, write_result
from cohort.adapters.bank import aligned_rank
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.adamw import SlotUpdate, adamw_step
from cohort.kernels.attention import AttentionTiles, RecordedTiles, packed_attention
from cohort.kernels.backend import Backend
from cohort.kernels.cross_entropy import linear_cross_entropy
from cohort.kernels.dropout import row_keys
from cohort.kernels.exact_product.triton import ProductTile, portable_product
from cohort.kernels.packed_linear import LaunchTables, LoraPart, SlotTable
from cohort.kernels.packed_linear.choice.tiles import TileChoice
from cohort.kernels.packed_linear.hopper import launch as hopper
from cohort.kernels.packed_linear.triton import grouped_backward, grouped_forward
from cohort.kernels.packed_mlp import packed_mlp
from cohort.kernels.rms_norm import add_rms_norm, rms_norm
from cohort.kernels.rope import apply_rope
from cohort.kernels.segments import SegmentTable
from cohort.kernels.swiglu import swiglu
from cohort.models.weight_formats.plain import FrozenLinear
from cohort.training.executor import Executor, ExecutorSettings
from cohort.training.token_losses import sequence_sums
from cohort.training.trial import TrialSpec

QUESTION = "Which operations of a step give a trial the same bits whatever stands beside it?"
Row = dict[str, Any]
# (input width, output width): of Llama-3.2-1B and Llama-3.1-8B
SHAPES = {
    "1b qkv": (2048, 3072),
    "1b down": (8192, 2048),
    "8b o": (4096, 4096),
    "8b qkv": (4096, 6144),
    "8b gate+up": (4096, 28672),
    "8b down": (14336, 4096),
}
TINY_SHAPES = {"tiny": (48, 96)}
ROWS = (32, 128, 256, 512, 1024, 2048, 8192)
TINY_ROWS = (32, 64, 128)
# rows whose bits are compared: the same at the beginning of every stream
BLOCK = 32


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and in which sizes the script runs."""

    device: str
    dtype: torch.dtype
    tiny: bool

    def draw(self, *shape: int, seed: int, std: float = 1.0) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(seed)
        drawn = torch.randn(*shape, device=self.device, generator=generator)
        return (drawn * std).to(self.dtype)


def changed(found: Tensor, expected: Tensor) -> float:
    """Return the share of entries whose bits differ."""
    if found.numel() == 0:
        return 0.0
    bits = torch.int16 if found.element_size() == 2 else torch.int32
    return float((found.contiguous().view(bits) != expected.contiguous().view(bits)).float().mean())


def seconds(work: Callable[[], object], *, repeats: int = 12) -> float:
    """Return the device time of one call."""
    if not torch.cuda.is_available():
        return 0.0
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        work()
    start.record()
    for _ in range(repeats):
        work()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / repeats / 1e3


# --- frozen products -------------------------------------------------------------------------------------------------

Product = Callable[[Tensor, Tensor, Tensor], None]


def _products(place: Place, *, forward: bool) -> dict[str, Product]:
    """Forms of ``y = x w^T`` (``forward``, w [N, K]) or ``y = x w``: each takes x, w and y to write."""

    def oriented(w: Tensor) -> Tensor:
        return w if forward else w.T

    def blas(x: Tensor, w: Tensor, y: Tensor) -> None:
        torch.mm(x, oriented(w).T, out=y)

    def blas_adding(x: Tensor, w: Tensor, y: Tensor) -> None:
        y.fill_(0.5)
        y.addmm_(x, oriented(w).T)

    def portable(tile: ProductTile, *, add: bool = False) -> Product:
        def product(x: Tensor, w: Tensor, y: Tensor) -> None:
            if add:
                y.fill_(0.5)
            portable_product(x, oriented(w), y, tile=tile, add=add)

        return product

    if place.tiny:
        small = ProductTile(rows=16, columns=16)
        return {
            "blas": blas,
            "blas adding": blas_adding,
            "triton 16x16": portable(small),
            "triton 32x32": portable(ProductTile(rows=32, columns=32)),
            "triton 16x16 adding": portable(small, add=True),
        }
    found: dict[str, Product] = {"blas": blas, "blas adding": blas_adding}

    def own(columns: int, strip: int) -> Product:
        def product(x: Tensor, w: Tensor, y: Tensor) -> None:
            before = hopper.COLUMNS, hopper.STRIP
            hopper.COLUMNS, hopper.STRIP = columns, strip
            try:
                hopper.hopper_product(x, w, y, parts=(), s_PTC=None, rank_pass=None, forward=forward)
            finally:
                hopper.COLUMNS, hopper.STRIP = before

        return product

    if hopper.is_hopper(torch.device(place.device)):
        found |= {"hopper 256": own(256, 128), "hopper 128": own(128, 128), "hopper 64": own(64, 64)}
    tile = ProductTile(rows=128, columns=128, warps=8, stages=3)
    found |= {
        "triton 128x128": portable(tile),
        "triton 128x128 adding": portable(tile, add=True),
        "triton 64x128": portable(ProductTile(rows=64, columns=128)),
        "triton 64x64": portable(ProductTile(rows=64, columns=64)),
        "triton 32x64": portable(ProductTile(rows=32, columns=64)),
    }
    return found


def product_rows(place: Place) -> Iterator[Row]:
    """Frozen products at several row counts: do the first rows keep their bits, and which forms agree?"""
    torch.cuda.empty_cache() if torch.cuda.is_available() else None
    shapes, counts = (TINY_SHAPES, TINY_ROWS) if place.tiny else (SHAPES, ROWS)
    for name, (num_in, num_out) in shapes.items():
        w = place.draw(num_out, num_in, seed=1, std=num_in**-0.5)
        for forward in (True, False):
            width, out = (num_in, num_out) if forward else (num_out, num_in)
            x = place.draw(counts[-1], width, seed=2)
            forms = _products(place, forward=forward)
            canon: dict[bool, Tensor] = {}
            for form, product in forms.items():
                adding = form.endswith("adding")
                row: Row = {"operation": "product", "form": form, "shape": name, "forward": forward}
                try:
                    yield row | _one_product(place, product, x, w, out, counts, canon, adding=adding)
                except Exception as error:  # a form that does not compile here is a finding
                    yield row | {"error": f"{type(error).__name__}: {error}"[:300]}


def _one_product(
    place: Place,
    product: Product,
    x: Tensor,
    w: Tensor,
    out: int,
    counts: Sequence[int],
    canon: dict[bool, Tensor],
    *,
    adding: bool,
) -> Row:
    found: dict[int, Tensor] = {}
    times: dict[str, float] = {}
    for count in counts:
        y = torch.empty(count, out, device=place.device, dtype=place.dtype)
        product(x[:count], w, y)
        found[count] = y[:BLOCK].clone()
        if not adding:
            times[f"us_{count}"] = round(seconds(lambda y=y, count=count: product(x[:count], w, y)) * 1e6, 1)
    last = found[counts[-1]]
    moved = torch.cat([x[BLOCK + 5 :], x[: BLOCK + 5]])
    y = torch.empty(counts[-1], out, device=place.device, dtype=place.dtype)
    product(moved, w, y)
    start = counts[-1] - BLOCK - 5
    result: Row = {
        "changed_by_rows": {str(count): changed(block, last) for count, block in found.items()},
        "changed_by_place": changed(y[start : start + BLOCK], last),
    }
    # compared with the first form that changes by nothing, if there is one
    if adding not in canon and not any(result["changed_by_rows"].values()):
        canon[adding] = last
    if adding in canon:
        result["differs_from_first_invariant"] = {
            str(count): changed(block, canon[adding]) for count, block in found.items()
        }
    return result | times


# --- the LoRA term ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """One trial of a random pack: its factors and rows follow from ``seed`` alone."""

    seed: int
    rank: int
    dropout: float
    lengths: tuple[int, ...]


def _tenant(draw: random.Random, seed: int, *, ranks: Sequence[int], dropouts: Sequence[float], long: int) -> Tenant:
    lengths = tuple(draw.randint(1, long) for _ in range(draw.randint(1, 4)))
    return Tenant(seed=seed, rank=draw.choice(ranks), dropout=draw.choice(dropouts), lengths=lengths)


@dataclass(kw_only=True)
class TermPack:
    """A linear, its adapters and one stream."""

    x_TK: Tensor
    dy_TN: Tensor
    parts: tuple[LoraPart, ...]
    slots: SlotTable
    segments: SegmentTable
    tables: LaunchTables
    row_keys_T: Tensor | None
    of_trial: slice
    rank_rows: slice


def _term_pack(place: Place, tenants: Sequence[Tenant], *, own: int, num_in: int, widths: Sequence[int]) -> TermPack:
    starts, end = [], 0
    for tenant in tenants:
        starts.append(end)
        end += aligned_rank(tenant.rank)
    slots = SlotTable(
        row_starts=tuple(starts),
        ranks=tuple(tenant.rank for tenant in tenants),
        scales=tuple(1.0 + 0.3 * (tenant.seed % 5) for tenant in tenants),
        dropouts=tuple(tenant.dropout for tenant in tenants),
    )
    lengths = [length for tenant in tenants for length in tenant.lengths]
    of = [slot for slot, tenant in enumerate(tenants) for _ in tenant.lengths]
    num_rows = -(-sum(lengths) // 16) * 16
    segments = SegmentTable.from_samples(lengths, slots=of, num_slots=len(tenants), num_rows=num_rows)
    x = torch.zeros(num_rows, num_in, device=place.device, dtype=place.dtype)
    dy = torch.zeros(num_rows, sum(widths), device=place.device, dtype=place.dtype)
    keys = np.zeros(num_rows, dtype=np.int64)
    parts = []
    for index, width in enumerate(widths):
        a = torch.zeros(end, num_in, device=place.device, dtype=place.dtype)
        b = torch.zeros(end, width, device=place.device, dtype=place.dtype)
        for slot, tenant in enumerate(tenants):
            own_rows = slice(starts[slot], starts[slot] + tenant.rank)
            a[own_rows] = place.draw(tenant.rank, num_in, seed=100 * tenant.seed + index, std=num_in**-0.5)
            b[own_rows] = place.draw(tenant.rank, width, seed=100 * tenant.seed + 50 + index, std=0.05)
        parts.append(
            LoraPart(
                a_RK=a,
                b_RN=b,
                grad_a_RK=torch.zeros(end, num_in, device=place.device),
                grad_b_RN=torch.zeros(end, width, device=place.device),
                column_start=sum(widths[:index]),
                module_key=77 + index,
            )
        )
    for slot, tenant in enumerate(tenants):
        rows = segments.rows(slot)
        count = rows.stop - rows.start
        x[rows] = place.draw(count, num_in, seed=100 * tenant.seed + 98)
        dy[rows] = place.draw(count, sum(widths), seed=100 * tenant.seed + 99)
        keys[rows] = np.concatenate(
            [row_keys(n, trial_seed=tenant.seed, step=3, sample_id=at) for at, n in enumerate(tenant.lengths)]
        )
    tables = LaunchTables(segments, slots, device=place.device, fresh_slots=range(len(tenants)))
    row_keys_T = torch.from_numpy(keys).to(place.device) if any(tenant.dropout for tenant in tenants) else None
    return TermPack(
        x_TK=x,
        dy_TN=dy,
        parts=tuple(parts),
        slots=slots,
        segments=segments,
        tables=tables,
        row_keys_T=row_keys_T,
        of_trial=segments.rows(own),
        rank_rows=slots.rank_rows(own),
    )


class _NoProduct(FrozenLinear):
    """Zeros in place of a frozen product: what remains is the LoRA term."""

    def forward(self, x_TK: Tensor) -> Tensor:
        return x_TK.new_zeros(x_TK.shape[0], self.out_features)

    def grad_input(self, dy_TN: Tensor) -> Tensor:
        return dy_TN.new_zeros(dy_TN.shape[0], self.in_features)

    def add_forward(self, x_TK: Tensor, y_TN: Tensor) -> None:
        pass

    def add_grad_input(self, dy_TN: Tensor, dx_TK: Tensor) -> None:
        pass


def _term(pack: TermPack, frozen: FrozenLinear, tiles: TileChoice | None) -> dict[str, Tensor]:
    """Return y, S, dx, dA and dB of the trial."""
    y, s = grouped_forward(
        pack.x_TK, frozen=frozen, parts=pack.parts, tables=pack.tables, row_keys_T=pack.row_keys_T, tiles=tiles
    )
    dx = grouped_backward(
        pack.dy_TN, x_TK=pack.x_TK, s_PTC=s, frozen=frozen, parts=pack.parts, tables=pack.tables,
        row_keys_T=pack.row_keys_T, tiles=tiles,
    )  # fmt: skip
    assert dx is not None, "dx was asked for"
    found = {"expand (Y)": y[pack.of_trial], "input side (dX)": dx[pack.of_trial]}
    found["shrink (S)"] = s[:, pack.of_trial, : min(16, pack.rank_rows.stop - pack.rank_rows.start)]
    for index, part in enumerate(pack.parts):
        assert part.grad_a_RK is not None, "packs have sinks"
        assert part.grad_b_RN is not None, "packs have sinks"
        found[f"dA part {index}"] = part.grad_a_RK[pack.rank_rows]
        found[f"dB part {index}"] = part.grad_b_RN[pack.rank_rows]
    return found


def term_rows(place: Place) -> Iterator[Row]:
    """The LoRA term alone, then among others of other ranks, lengths and dropouts."""
    num_in, widths = (32, (48, 16, 16)) if place.tiny else (2048, (2048, 512, 512))
    long = 20 if place.tiny else 700
    frozen = _NoProduct(place.draw(sum(widths), num_in, seed=5))
    for rank, dropout in ((8, 0.0), (16, 0.1), (100, 0.0)):
        draw = random.Random(rank)
        trial = Tenant(seed=1, rank=rank, dropout=dropout, lengths=(long, long // 3, 5, long // 2))
        alone = _term_pack(place, [trial], own=0, num_in=num_in, widths=widths)
        places = {"before": TileChoice(), "after": TileChoice(term_forward="after", term_backward="after")}
        if place.tiny:
            places = {"before": TileChoice(shrink_block=16, expand_block=16)}
        for form, tiles in places.items():
            expected = _term(alone, frozen, tiles)
            for what, ranks, dropouts in (
                ("same class", (rank,), (dropout,)),
                ("other ranks", (8, 16, 64, 128), (dropout,)),
                ("other ranks, some dropout", (8, 128), (0.0, 0.2)),
                ("a rank above 128", (8, 200), (dropout,)),
            ):
                others = [_tenant(draw, seed, ranks=ranks, dropouts=dropouts, long=long) for seed in (2, 3, 4)]
                others[0] = Tenant(seed=2, rank=ranks[-1], dropout=dropouts[-1], lengths=others[0].lengths)
                pack = _term_pack(place, [others[0], trial, *others[1:]], own=1, num_in=num_in, widths=widths)
                for operation, found in _term(pack, frozen, tiles).items():
                    share = changed(found, expected[operation])
                    row: Row = {"operation": operation, "form": f"term {form}", "rank": rank, "dropout": dropout}
                    yield row | {"beside": what, "changed": share}
        yield from _split_gradients(place, trial, frozen, num_in=num_in, widths=widths)


def _split_gradients(
    place: Place, trial: Tenant, frozen: FrozenLinear, *, num_in: int, widths: Sequence[int]
) -> Iterator[Row]:
    """Gradients of one pass over all samples against those of two passes."""
    tiles = TileChoice(shrink_block=16, expand_block=16) if place.tiny else TileChoice()
    whole = _term_pack(place, [trial], own=0, num_in=num_in, widths=widths)
    expected = _term(whole, frozen, tiles)
    cut = sum(trial.lengths[:2])
    for first, stop, lengths in ((0, cut, trial.lengths[:2]), (cut, sum(trial.lengths), trial.lengths[2:])):
        num_rows = -(-(stop - first) // 16) * 16
        segments = SegmentTable.from_samples(lengths, slots=[0] * len(lengths), num_slots=1, num_rows=num_rows)
        tables = LaunchTables(segments, whole.slots, device=place.device, fresh_slots=(0,) if first == 0 else ())
        pad = (0, 0, 0, num_rows - (stop - first))
        keys = None
        if whole.row_keys_T is not None:
            keys = torch.nn.functional.pad(whole.row_keys_T[first:stop], pad[2:])
        pack = TermPack(
            x_TK=torch.nn.functional.pad(whole.x_TK[first:stop], pad),
            dy_TN=torch.nn.functional.pad(whole.dy_TN[first:stop], pad),
            parts=whole.parts,
            slots=whole.slots,
            segments=segments,
            tables=tables,
            row_keys_T=None
            if whole.row_keys_T is None
            else torch.nn.functional.pad(whole.row_keys_T[first:stop], pad[2:]),
            of_trial=slice(0, stop - first),
            rank_rows=whole.rank_rows,
        )
        if first == 0:
            kept = {name: value.clone() for name, value in expected.items()}
        found = _term(pack, frozen, tiles)
    for name, value in found.items():
        if name.startswith("d"):
            row: Row = {"operation": name, "form": "two passes", "rank": trial.rank, "dropout": trial.dropout}
            yield row | {"beside": "split micro-batch", "changed": changed(value, kept[name])}


def inside_rows(place: Place) -> Iterator[Row]:
    """The Hopper product with the term inside: alone, among others, and with other columns a tile."""
    if not hopper.is_hopper(torch.device(place.device)):
        return
    num_in, widths = 4096, (4096, 1024, 1024)
    frozen = FrozenLinear(place.draw(sum(widths), num_in, seed=5, std=num_in**-0.5))
    weight = frozen.plain_weight_NK
    assert weight is not None, "no bias"
    for rank in (8, 40):
        trial = Tenant(seed=1, rank=rank, dropout=0.0, lengths=(300, 77))
        packs = {"alone": _term_pack(place, [trial], own=0, num_in=num_in, widths=widths)}
        for what, ranks in (("small ranks", (8, 16)), ("large ranks", (64, 128)), ("many", (8, 16, 32, 64, 128))):
            draw = random.Random(rank)
            others = [
                _tenant(draw, seed, ranks=ranks, dropouts=(0.0,), long=700)
                for seed in range(2, 16 if what == "many" else 5)
            ]
            packs[what] = _term_pack(place, [*others[:2], trial, *others[2:]], own=2, num_in=num_in, widths=widths)
        for forward in (True, False):
            expected = None
            for columns in (256, 128):
                for what, pack in packs.items():
                    row: Row = {"operation": "product with the term", "form": f"hopper {columns}", "forward": forward}
                    row |= {"rank": rank, "beside": what}
                    try:
                        found = _inside(pack, weight, columns=columns, forward=forward)
                    except Exception as error:
                        yield row | {"error": f"{type(error).__name__}: {error}"[:300]}
                        continue
                    expected = found if expected is None else expected
                    yield row | {"changed": changed(found, expected)}


def _inside(pack: TermPack, weight: Tensor, *, columns: int, forward: bool) -> Tensor:
    from cohort.kernels.packed_linear.launch.launches import output_side_ds, shrink

    tiles = TileChoice()
    num_rows = pack.x_TK.shape[0]
    if forward:
        s = pack.x_TK.new_empty(len(pack.parts), num_rows, pack.tables.num_columns)
        shrink(pack.x_TK, pack.parts, s, pack.tables.passes[0], tables=pack.tables, row_keys_T=None, tiles=tiles)
    else:
        s = output_side_ds(pack.dy_TN, pack.parts, pack.tables.passes[0], tables=pack.tables, tiles=tiles)
    operand = pack.x_TK if forward else pack.dy_TN
    out = operand.new_empty(num_rows, weight.shape[0 if forward else 1])
    before = hopper.COLUMNS
    hopper.COLUMNS = columns
    try:
        hopper.hopper_product(
            operand, weight, out, parts=pack.parts, s_PTC=s, rank_pass=pack.tables.passes[0], forward=forward
        )
    finally:
        hopper.COLUMNS = before
    return out[pack.of_trial].clone()


# --- operations by row -----------------------------------------------------------------------------------------------


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
        both = _term_pack(place, [trial, *others], own=0, num_in=width, widths=(inner, inner))
        last = _term_pack(place, [trial, *others], own=0, num_in=inner, widths=(width,))
        y = packed_mlp(
            both.x_TK, gate_up=gate_up, gate_up_parts=both.parts, down=down, down_parts=last.parts, slots=both.slots,
            segments=both.segments, tables=both.tables, backend=Backend.TRITON,
        )  # fmt: skip
        found[what] = y[both.of_trial]
        share = changed(found[what], found["alone"])
        yield {"operation": "feed-forward block", "form": "as chosen", "beside": what, "changed": share}


# --- whole steps -----------------------------------------------------------------------------------------------------


def _spec(trial_id: int, rank: int, *, dropout: float, batch_size: int) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=AdapterSpec(r=rank, lora_alpha=2.0 * rank, lora_dropout=dropout),
        learning_rate=3e-3,
        batch_size=batch_size,
        num_steps=1000,
    )


def step_rows(place: Place, *, settings: dict[str, Any]) -> Iterator[Row]:
    """Steps of a model of few layers: a trial's losses and weights alone and in random packs."""
    shape, steps = ("tiny", 3) if place.tiny else ("1b", 6)
    config = decoder_config(shape, num_layers=2)
    decoder = random_decoder(config, device=place.device, dtype=place.dtype)
    rows = gsm8k_rows(64, vocab_size=config.vocab_size)
    trial = _spec(0, 16, dropout=0.0, batch_size=3)

    def run(specs: Sequence[TrialSpec], *, budget: int, graphs: int) -> tuple[list[float], Tensor]:
        executor = Executor(
            decoder,
            target_linears=decoder.linears,
            train_rows=rows,
            settings=ExecutorSettings(
                num_slots=max(8, len(specs)),
                num_rank_rows=sum(aligned_rank(spec.adapter.num_rows) for spec in specs),
                token_budget=budget,
                evaluation_token_budget=budget,
                graph_tokens=graphs,
                **settings,
            ),
            device=place.device,
            compute_dtype=place.dtype,
        )
        for spec in specs:
            executor.load(spec)
        losses = []
        for _ in range(steps):
            losses += [done.loss for done in executor.step() if done.trial_id == 0]
        return losses, executor.weights(0)

    before = [_spec(7, 64, dropout=0.0, batch_size=4), _spec(8, 8, dropout=0.0, batch_size=1)]
    expected = run([trial], budget=8192, graphs=0)
    cases: list[tuple[str, list[TrialSpec], int, int]] = [
        ("alone, again", [trial], 8192, 0),
        ("alone, split", [trial], 300, 0),
        ("alone, recorded", [trial], 8192, 4096),
        ("small ranks beside", [_spec(5, 8, dropout=0.0, batch_size=2), trial], 8192, 0),
        ("ranks 8 to 64 beside", [*before, trial], 8192, 0),
        ("dropout beside", [*before, trial, _spec(9, 16, dropout=0.1, batch_size=2)], 8192, 0),
        ("a rank of 200 beside", [_spec(6, 200, dropout=0.0, batch_size=2), trial], 8192, 0),
        ("ranks 8 to 64 beside, split", [*before, trial], 700, 0),
        ("ranks 8 to 64 beside, recorded", [*before, trial], 8192, 4096),
    ]
    for what, specs, budget, graphs in cases:
        losses, weights = run(specs, budget=budget, graphs=graphs)
        pairs = enumerate(zip(losses, expected[0], strict=True), 1)
        first = next((step for step, (one, other) in pairs if one != other), None)
        row: Row = {"operation": f"{steps} steps", "form": str(settings) if settings else "fast", "beside": what}
        yield row | {"first_other_loss": first, "changed": changed(weights, expected[1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "neighbours.json")
    parser.add_argument("--sections", nargs="*", default=["product", "term", "inside", "rows", "step"])
    parser.add_argument("--tiny", action="store_true", help="small sizes on any device")
    parser.add_argument("--settings", nargs="*", default=[], help="further settings of the executor, key=value")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    place = Place(device=device, dtype=dtype, tiny=options.tiny or device == "cpu")
    settings = dict(pair.split("=", 1) for pair in options.settings)
    sections: dict[str, Callable[[], Iterator[Row]]] = {
        "product": lambda: product_rows(place),
        "term": lambda: term_rows(place),
        "inside": lambda: inside_rows(place),
        "rows": lambda: row_rows(place),
        "step": lambda: step_rows(place, settings=settings),
    }
    found: list[Row] = []
    taken: dict[str, float] = {}
    for name in options.sections:
        begun = time.perf_counter()
        try:
            for row in sections[name]():
                found.append({"section": name, **row})
        except Exception as error:  # the other sections are worth having
            found.append({"section": name, "operation": name, "error": f"{type(error).__name__}: {error}"[:600]})
        taken[name] = round(time.perf_counter() - begun, 1)
        write_result(options.out, question=QUESTION, headline=_headline(found, taken), rows=found)
    columns = ("section", "operation", "form", "rank", "dropout", "beside", "changed", "first_other_loss", "error")
    print_table(found, columns=columns)
    print(taken)


def _headline(rows: Sequence[Row], taken: dict[str, float]) -> dict[str, float]:
    shares = [row["changed"] for row in rows if "changed" in row]
    return {"checks": len(shares), "checks_that_changed": sum(share > 0 for share in shares)} | {
        f"seconds_{name}": value for name, value in taken.items()
    }


if __name__ == "__main__":
    main()
