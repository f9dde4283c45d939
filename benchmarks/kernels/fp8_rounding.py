"""What does rounding rows to e4m3 cost at the widths of an 8B model, by the pieces in which a wide row is read?

``python -m benchmarks.kernels.fp8_rounding [--tokens 1024 8192] [--out RESULT.json]``. Each width of a layer's inputs
(4096, 14336) and gradients (6144, 28672, with factors), by columns and warps of a program; ``whole`` keeps a row in one
program's registers. GB/s are of 3 bytes an entry, the least that a pass of its own moves. Then the norm that joins a
block's output to the stream: alone, followed by a rounding of its own, and writing the codes itself. Every variant
gives the same bits, which is checked. ``--tiny`` tries it out in Triton's interpreter, whose times mean nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.measure import RESULTS, milliseconds, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.kernels.backend import Backend
from cohort.kernels.fp8_product import Fp8Rows, empty_rows, quantise_rows, triton
from cohort.kernels.rms_norm import add_rms_norm

QUESTION = "What does rounding rows to e4m3 cost, by the pieces in which a wide row is read?"
# width and whether columns have factors, as gradients do
WIDTHS = ((4096, False), (4096, True), (6144, True), (14336, False), (28672, True))
PIECES = ((2048, 4), (2048, 8), (4096, 8), (4096, 16), (8192, 16), (8192, 32))
WHOLE = 1 << 20
Work = Callable[[], Fp8Rows]
HIDDEN = 4096


def _variant(x_TK: Tensor, factors_K: Tensor | None, *, columns: int | None = None, warps: int = 0) -> Work:
    """Return the rounding with a row in one piece, or in pieces of ``columns``; None: as the product does it."""

    def work() -> Fp8Rows:
        with ExitStack() as patches:
            if columns == WHOLE:
                patches.enter_context(patch.object(triton, "WIDEST_WHOLE_ROW", WHOLE))
            elif columns is not None:
                patches.enter_context(patch.object(triton, "WIDEST_WHOLE_ROW", 0))
                patches.enter_context(patch.object(triton, "PIECE_WARPS", warps))
                patches.enter_context(patch.object(triton, "piece_columns", lambda _: columns))
            return quantise_rows(x_TK, factors_K=factors_K, backend=Backend.TRITON)

    return work


def measure_norms(*, width: int, num_rows: int, device: str) -> dict[str, Any]:
    """Return the times of a norm, and of two ways to the codes of its rows."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    x_TD, residual_TD = (torch.randn(num_rows, width, device=device).to(dtype) for _ in range(2))
    weight_D = torch.rand(width, device=device).to(dtype)

    def norm(codes: Fp8Rows | None = None) -> Tensor:
        return add_rms_norm(
            x_TD, residual_TD=residual_TD, weight_D=weight_D, eps=1e-5, codes=codes, backend=Backend.TRITON
        )[0]

    def together() -> Fp8Rows:
        codes = empty_rows(x_TD, width=width)
        norm(codes)
        return codes

    def apart() -> Fp8Rows:
        return quantise_rows(norm(), backend=Backend.TRITON)

    assert torch.equal(together().codes_TK.view(torch.uint8), apart().codes_TK.view(torch.uint8))
    times = milliseconds({"norm": norm, "norm, codes apart": apart, "norm, codes together": together}, baseline="norm")
    return {"tokens": num_rows, "width": width, **{f"{name} us": ms * 1e3 for name, ms in times.items()}}


def measure(*, widths: tuple[tuple[int, bool], ...], tokens: list[int], device: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each width and number of tokens."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    for num_rows in tokens:
        for width, has_factors in widths:
            x_TK = torch.randn(num_rows, width, device=device).to(dtype)
            factors_K = torch.rand(width, device=device) + 0.5 if has_factors else None
            works = {"product": _variant(x_TK, factors_K), "whole": _variant(x_TK, factors_K, columns=WHOLE)}
            for columns, warps in PIECES:
                works[f"{columns} by {warps}"] = _variant(x_TK, factors_K, columns=columns, warps=warps)
            first = works["product"]()
            for work in works.values():
                found = work()
                assert torch.equal(found.codes_TK.view(torch.uint8), first.codes_TK.view(torch.uint8))
                assert torch.equal(found.scales_T, first.scales_T)
            times = milliseconds(works, baseline="product")
            best = min(times, key=times.__getitem__)
            row: dict[str, Any] = {"tokens": num_rows, "width": width, "factors": has_factors, "best": best}
            row |= {f"{name} us": ms * 1e3 for name, ms in times.items()}
            row["product GB/s"] = 3 * num_rows * width / times["product"] / 1e6
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "fp8_rounding.json")
    options = parser.parse_args()
    need_gpu(shape="tiny" if options.tiny else None)
    torch.manual_seed(0)
    device = "cpu" if options.tiny else "cuda"
    tokens, widths = ([2], ((5000, True),)) if options.tiny else (options.tokens, WIDTHS)
    rows: list[dict[str, Any]] = []
    for row in measure(widths=widths, tokens=tokens, device=device):
        rows.append(row)
        write_result(options.out, question=QUESTION, headline=headline(rows), rows=rows)
    print_table(rows, columns=list(rows[0]))
    width = 256 if options.tiny else HIDDEN
    norms = [measure_norms(width=width, num_rows=num_rows, device=device) for num_rows in tokens]
    write_result(options.out, question=QUESTION, headline=headline(rows), rows=rows + norms)
    print_table(norms, columns=list(norms[0]))


def headline(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The speed of the widest gradient's rounding, and how much faster it is than with whole rows."""
    widest = rows[-1]
    return {
        "fp8_rounding_widest_gb_per_s": widest["product GB/s"],
        "fp8_rounding_pieces_over_whole": widest["whole us"] / widest["product us"],
    }


if __name__ == "__main__":
    main()
