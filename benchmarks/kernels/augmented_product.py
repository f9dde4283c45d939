"""When does a packed linear gain from an augmented product, that is from B as further columns of the frozen weight?

``python -m benchmarks.kernels.augmented_product [--result FILE] [--rows 8192 2048] [--compile-only]``: the forward
pass of Llama-3.1-8B's o and down by CUDA-graph replay, over several packs: the frozen product alone, the same over a
weight with columns to spare, with an expand before an accumulating product ("apart"), and augmented. What a table of
tiles says of the rule's two limits (``augmented_columns``, ``augmented_rows``) comes from here. Before anything is
timed, one pack is compared with float32, forward and every gradient, and one with a B that is not finite with one
that is.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels.adapter_packs import LINEARS, Pack, build_pack, uneven_lengths
from benchmarks.measure import RESULTS, interleaved, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.kernels.packed_linear import triton as grouped
from cohort.kernels.packed_linear.choice.tiles import TermPlace
from cohort.models.weight_formats.kinds.plain import FrozenLinear

QUESTION = "When does a packed linear gain from an augmented product?"
# adapters and the rank of each
PACKS = ((8, 16), (1, 16), (1, 64), (8, 32))
MOST_COLUMNS = 256


def _pack(name: str, num_rows: int, adapters: int, rank: int) -> Pack:
    in_features, out_widths = LINEARS[name]
    torch.manual_seed(0)
    lengths, ranks = uneven_lengths(num_rows, adapters), [rank] * adapters
    return build_pack(in_features, out_widths, lengths=lengths, ranks=ranks, room_columns=MOST_COLUMNS)


def _arguments(pack: Pack, place: TermPlace) -> dict[str, Any]:
    tiles = replace(
        grouped.tiles_for(pack.x_TK, pack.parts), term_forward=place, augmented_columns=MOST_COLUMNS, augmented_rows=1
    )
    return {"frozen": pack.frozen, "parts": pack.parts, "tables": pack.tables, "row_keys_T": None, "tiles": tiles}


def _forward(pack: Pack, place: TermPlace) -> Callable[[], torch.Tensor]:
    arguments = _arguments(pack, place)
    room = pack.room if place is TermPlace.AUGMENTED else None
    assert pack.room is not None, "every pack here has room"
    return lambda: grouped.grouped_forward(pack.x_TK, room=room, **arguments)[0]


def _difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.float() - wanted).norm() / wanted.norm())


def _errors(pack: Pack) -> dict[str, float]:
    """Relative errors of y and every gradient of an augmented product against float32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    (part,), weight = pack.parts, pack.frozen.plain_weight_NK
    assert weight is not None
    x, a, b = (tensor.float().requires_grad_() for tensor in (pack.x_TK, part.a_RK, part.b_RN))
    own = torch.zeros(x.shape[0], a.shape[0], device=x.device)
    for slot, scale in enumerate(pack.slots.scales):
        own[pack.segments.rows(slot), pack.slots.rank_rows(slot)] = scale
    y = x @ weight.float().T + ((x @ a.T) * own) @ b
    y.backward(pack.dy_TN.float())
    arguments = _arguments(pack, TermPlace.AUGMENTED)
    found, s = grouped.grouped_forward(pack.x_TK, room=pack.room, **arguments)
    dx = grouped.grouped_backward(pack.dy_TN, x_TK=pack.x_TK, s_PTC=s, **arguments)
    pairs = {"y": (found, y), "dx": (dx, x.grad), "da": (part.grad_a_RK, a.grad), "db": (part.grad_b_RN, b.grad)}
    return {name: _difference(ours, theirs.detach()) for name, (ours, theirs) in pairs.items()}


def _stays_apart(pack: Pack) -> bool:
    """Whether a B that is not finite leaves the bits of other slots alone and makes all rows of its own NaN."""
    clean = _forward(pack, TermPlace.AUGMENTED)()
    rows, first = pack.segments.rows(3), pack.slots.rank_rows(3).start
    pack.parts[0].b_RN[first + 5, -1] = torch.inf
    pack.parts[0].b_RN[first + 7, 1] = torch.nan
    found = _forward(pack, TermPlace.AUGMENTED)()
    others = torch.ones(len(found), dtype=torch.bool, device=found.device)
    others[rows] = False
    return torch.equal(found[others], clean[others]) and bool(found[rows].isnan().all())


def _measure(name: str, num_rows: int, adapters: int, rank: int, *, compile_only: bool) -> dict[str, Any]:
    pack = _pack(name, num_rows, adapters, rank)
    row: dict[str, Any] = {"linear": name, "rows": num_rows, "adapters": adapters, "rank": rank}
    row["columns"] = pack.tables.num_rank_rows
    places = {"apart": TermPlace.BEFORE, "augmented": TermPlace.AUGMENTED}
    results = {column: _forward(pack, place)() for column, place in places.items()}
    row["difference"] = _difference(results["augmented"], results["apart"].float())
    if not row["difference"] < 1e-2:
        raise SystemExit(f"{name}: the two forms differ by {row['difference']:.2e}; no timing of wrong results")
    if compile_only:
        return row
    del results
    weight = pack.frozen.plain_weight_NK
    assert weight is not None
    dense, dense_x = FrozenLinear(weight.contiguous()), pack.x_TK.contiguous()
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
    parser.add_argument("--rows", type=int, nargs="+", default=[8192, 2048])
    parser.add_argument(
        "--compile-only", action="store_true", help="fill the cache of kernels and compare, time nothing"
    )
    options = parser.parse_args()
    need_gpu()
    pack = _pack("o", 2048, 8, 16)
    errors = _errors(pack)
    apart = _stays_apart(pack)
    del pack
    print({name: f"{error:.1e}" for name, error in errors.items()}, "stays apart:", apart, flush=True)
    if not apart or not max(errors.values()) < 1e-2:
        raise SystemExit("an augmented product is wrong; no timing of wrong results")
    notes = {f"error_{name}": error for name, error in errors.items()}
    rows: list[dict[str, Any]] = []
    for num_rows in options.rows:
        for adapters, rank in PACKS:
            for name in ("o", "down"):
                rows.append(_measure(name, num_rows, adapters, rank, compile_only=options.compile_only))
        if not options.compile_only:
            # written as it grows: what was measured is not lost when the machine is
            write_result(options.result, question=QUESTION, headline=_headline(rows), rows=rows, notes=notes)
    columns = ("frozen_us", "frozen_with_room_us", "apart_us", "augmented_us", "gain_us", "difference")
    print_table(rows, columns=("linear", "rows", "adapters", "rank", "columns", *columns))


def _headline(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {
        f"gain_us_{row['linear']}_{row['columns']}": row["gain_us"]
        for row in rows
        if row["rows"] == 8192 and row["columns"] in (64, 128)
    }


if __name__ == "__main__":
    main()
