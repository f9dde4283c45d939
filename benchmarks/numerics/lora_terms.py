"""The LoRA term of one trial, alone and among others of other ranks, lengths and dropouts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.numerics.places import Place, Row, changed
from cohort.adapters.bank import aligned_rank
from cohort.kernels.dropout import row_keys
from cohort.kernels.packed_linear import LaunchTables, LoraPart, SlotTable
from cohort.kernels.packed_linear.choice.tiles import TileChoice
from cohort.kernels.packed_linear.triton import grouped_backward, grouped_forward
from cohort.kernels.segments import SegmentTable
from cohort.models.weight_formats.kinds.plain import FrozenLinear

__all__ = ["Tenant", "TermPack", "term_pack", "term_rows"]


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """One trial of a random pack: its factors and rows follow from ``seed`` alone."""

    seed: int
    rank: int
    dropout: float
    lengths: tuple[int, ...]


def tenant(draw: random.Random, seed: int, *, ranks: Sequence[int], dropouts: Sequence[float], long: int) -> Tenant:
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


def term_pack(place: Place, tenants: Sequence[Tenant], *, own: int, num_in: int, widths: Sequence[int]) -> TermPack:
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
        alone = term_pack(place, [trial], own=0, num_in=num_in, widths=widths)
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
                others = [tenant(draw, seed, ranks=ranks, dropouts=dropouts, long=long) for seed in (2, 3, 4)]
                others[0] = Tenant(seed=2, rank=ranks[-1], dropout=dropouts[-1], lengths=others[0].lengths)
                pack = term_pack(place, [others[0], trial, *others[1:]], own=1, num_in=num_in, widths=widths)
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
    whole = term_pack(place, [trial], own=0, num_in=num_in, widths=widths)
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
            row_keys_T=keys,
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
