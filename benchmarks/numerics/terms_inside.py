"""The Hopper product with the LoRA term inside: a trial alone and among others."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.numerics.lora_terms import Tenant, TermPack, tenant, term_pack
from benchmarks.numerics.places import Place, Row, changed
from cohort.kernels.packed_linear.choice.tiles import TileChoice
from cohort.kernels.packed_linear.hopper.launch import hopper_product, is_hopper
from cohort.models.weight_formats.kinds.plain import FrozenLinear

__all__ = ["inside_rows"]


def inside_rows(place: Place) -> Iterator[Row]:
    """The Hopper product with the term inside: alone, among others, and with other columns a tile."""
    if not is_hopper(torch.device(place.device)):
        return
    num_in, widths = 4096, (4096, 1024, 1024)
    frozen = FrozenLinear(place.draw(sum(widths), num_in, seed=5, std=num_in**-0.5))
    weight = frozen.plain_weight_NK
    assert weight is not None, "no bias"
    for rank in (8, 40):
        trial = Tenant(seed=1, rank=rank, dropout=0.0, lengths=(300, 77))
        packs = {"alone": term_pack(place, [trial], own=0, num_in=num_in, widths=widths)}
        for what, ranks in (("small ranks", (8, 16)), ("large ranks", (64, 128)), ("many", (8, 16, 32, 64, 128))):
            draw = random.Random(rank)
            others = [
                tenant(draw, seed, ranks=ranks, dropouts=(0.0,), long=700)
                for seed in range(2, 16 if what == "many" else 5)
            ]
            packs[what] = term_pack(place, [*others[:2], trial, *others[2:]], own=2, num_in=num_in, widths=widths)
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
    hopper_product(
        operand,
        weight,
        out,
        parts=pack.parts,
        s_PTC=s,
        rank_pass=pack.tables.passes[0],
        forward=forward,
        columns=columns,
    )
    return out[pack.of_trial].clone()
