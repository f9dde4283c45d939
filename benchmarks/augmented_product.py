"""When does a packed linear gain from an augmented product, that is from B as further columns of the frozen weight?

``python benchmarks/augmented_product.py [--result FILE] [--rows 4096 8192]``: the forward pass of Llama-3.1-8B's o and
down by CUDA-graph replay, over several packs: the frozen product alone, the same over a weight with columns to spare,
with an expand before an accumulating product ("apart"), and augmented. What a table of tiles says of the rule's two
limits (``augmented_columns``, ``augmented_rows``) comes from here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.adapter_packs import LINEARS, Pack, build_pack, uneven_lengths
from benchmarks.linear_peers import loop
from benchmarks.measure import RESULTS, interleaved, print_table, write_result
from cohort.kernels.packed_linear import triton as grouped
from cohort.kernels.packed_linear.choice import TermPlace
from cohort.models.frozen_linear import FrozenLinear

QUESTION = "When does a packed linear gain from an augmented product?"
# adapters and the rank of each
PACKS = ((1, 16), (1, 64), (4, 16), (8, 16), (16, 16), (8, 64))
MOST_COLUMNS = 512


def _forward(pack: Pack, place: TermPlace) -> Callable[[], torch.Tensor]:
    tiles = replace(
        grouped.tiles_for(pack.x_TK, pack.parts), term_forward=place, augmented_columns=MOST_COLUMNS, augmented_rows=1
    )
    room = pack.room if place is TermPlace.AUGMENTED else None
    assert room is not None or place is not TermPlace.AUGMENTED, "every pack here has room"

    def work() -> torch.Tensor:
        return grouped.grouped_forward(
            pack.x_TK, frozen=pack.frozen, parts=pack.parts, tables=pack.tables, row_keys_T=None, tiles=tiles, room=room
        )[0]

    return work


def _measure(name: str, num_rows: int, adapters: int, rank: int) -> dict[str, Any]:
    in_features, out_widths = LINEARS[name]
    torch.manual_seed(0)
    pack = build_pack(
        in_features, out_widths, lengths=uneven_lengths(num_rows, adapters), ranks=[rank] * adapters,
        room_columns=MOST_COLUMNS,
    )  # fmt: skip
    dense_x = pack.x_TK.contiguous()
    weight = pack.frozen.plain_weight_NK
    assert weight is not None
    dense = FrozenLinear(weight.contiguous())
    row: dict[str, Any] = {"linear": name, "rows": num_rows, "adapters": adapters, "rank": rank}
    row["columns"] = pack.tables.num_rank_rows
    wanted = loop(pack)()[0].float()
    places = {"apart": TermPlace.BEFORE, "augmented": TermPlace.AUGMENTED}
    for column, place in places.items():
        error = float((_forward(pack, place)().float() - wanted).norm() / wanted.norm())
        if not error < 1e-2:
            raise SystemExit(
                f"{name} {column}: relative error {error:.2e} against the loop; no timing of wrong results"
            )
        row[f"{column}_error"] = error
    works: dict[str, Callable[[], object]] = {
        "frozen": lambda: dense.forward(dense_x),
        "frozen_with_room": lambda: pack.frozen.forward(pack.x_TK),
    }
    works |= {column: _forward(pack, place) for column, place in places.items()}
    for column, (ms, ratio) in interleaved(works, baseline="frozen", rounds=5, block_seconds=0.03).items():
        row[f"{column}_us"], row[column] = ms * 1e3, ratio
    row["gain_us"] = row["apart_us"] - row["augmented_us"]
    return row


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--result", type=Path, default=RESULTS / "augmented_product.json")
    parser.add_argument("--rows", type=int, nargs="+", default=[2048, 4096, 8192, 16384])
    options = parser.parse_args()
    rows = [
        _measure(name, num_rows, adapters, rank)
        for num_rows in options.rows
        for name in ("o", "down")
        for adapters, rank in PACKS
    ]
    headline = {
        f"gain_us_{row['linear']}_{row['rows']}": row["gain_us"]
        for row in rows
        if (row["adapters"], row["rank"]) == (8, 16)
    }
    write_result(options.result, question=QUESTION, headline=headline, rows=rows)
    columns = ("frozen_us", "frozen_with_room_us", "apart_us", "augmented_us", "gain_us", "augmented_error")
    print_table(rows, columns=("linear", "rows", "adapters", "rank", "columns", *columns))


if __name__ == "__main__":
    main()
