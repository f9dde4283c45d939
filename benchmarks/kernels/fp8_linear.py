"""What do the frozen linears of an 8B model cost in fp8, piece by piece, against bf16 on the same rows?

``python -m benchmarks.kernels.fp8_linear [--tokens 256 1024 8192] [--out RESULT.json]``. For each linear and number of
rows: the bf16 product; rounding of the rows; the fp8 product with the fast sum of the tensor cores and with the exact
one; the whole linear as the product computes it; for dX also the transposition of the codes, and the whole with it.
Errors are against the definition in float32 (same codes, so of sums alone) and against the unrounded float64 product.
With ``--blocks`` the scales by 128 x 128 blocks that would serve both products, where this torch has them.
``--tiny`` tries the script out on a CPU, whose times mean nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import RESULTS, interleaved, median_replay, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.kernels.fp8_product import Fp8Rows, fp8_forward, fp8_grad_input, op, quantise_rows, reference, transposed

QUESTION = "What do the frozen linears of an 8B model cost in fp8, piece by piece, against bf16?"
SHAPES = {"qkv": (4096, 6144), "output": (4096, 4096), "gate_up": (4096, 28672), "down": (14336, 4096)}
TINY = {"qkv": (64, 96), "down": (160, 64)}
Work = Callable[[], object]


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def _shrinks(found: Tensor, expected: Tensor) -> float:
    """Return by which share ``found`` is shorter along ``expected``."""
    return 1 - float((found.double() * expected.double()).sum() / expected.double().square().sum())


class _Linear:
    """One linear with random weights, its rows and its gradients."""

    def __init__(self, num_in: int, num_out: int, *, rows: int, device: str) -> None:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.weight_NK = torch.randn(num_out, num_in, device=device, dtype=dtype) * num_in**-0.5
        self.x_TK = torch.randn(rows, num_in, device=device, dtype=dtype)
        # as gradients are: rows of very different sizes
        sizes = torch.logspace(-6, -2, rows, device=device, dtype=torch.float32)[:, None]
        self.dy_TN = (torch.randn(rows, num_out, device=device) * sizes).to(dtype)
        kept = quantise_rows(self.weight_NK)
        self.codes_NK, self.scales_N = kept.codes_TK, kept.scales_T
        self.codes_KN = transposed(self.codes_NK)
        self.rows, self.gradient_rows = quantise_rows(self.x_TK), quantise_rows(self.dy_TN, factors_K=self.scales_N)
        self.ones_K = torch.ones(num_in, device=device)

    def works(self) -> dict[str, Work]:
        """Everything that is timed, by name."""
        kept = {"codes_NK": self.codes_NK, "scales_N": self.scales_N}
        found: dict[str, Work] = {
            "bf16 y": lambda: self.x_TK @ self.weight_NK.t(),
            "bf16 dx": lambda: self.dy_TN @ self.weight_NK,
            "round x": lambda: quantise_rows(self.x_TK),
            "round dy": lambda: quantise_rows(self.dy_TN, factors_K=self.scales_N),
            "transpose": lambda: transposed(self.codes_NK),
            "whole y": lambda: fp8_forward(self.x_TK, **kept),
            "whole dx": lambda: fp8_grad_input(self.dy_TN, codes_KN=self.codes_KN, **kept),
            "whole dx, transposing": lambda: fp8_grad_input(self.dy_TN, **kept),
        }
        if self.x_TK.is_cuda:
            for name, fast in (("fast", True), ("exact", False)):
                found[f"y {name}"] = lambda fast=fast: self.product(forward=True, fast=fast)
                found[f"dx {name}"] = lambda fast=fast: self.product(forward=False, fast=fast)
        return found

    def product(self, *, forward: bool, fast: bool) -> Tensor:
        rows: Fp8Rows = self.rows if forward else self.gradient_rows
        weight = self.codes_NK.t() if forward else self.codes_KN.t()
        scales = self.scales_N if forward else self.ones_K
        return op._product(rows, weight, scales, dtype=self.x_TK.dtype, fast=fast)

    def errors(self) -> dict[str, float]:
        """Relative errors of the products over the first 256 rows."""
        x, dy = self.x_TK[:256].float(), self.dy_TN[:256].float()
        kept = {"codes_NK": self.codes_NK, "scales_N": self.scales_N}
        found = {
            "rounding y": _relative(reference.fp8_forward(x, **kept), x.double() @ self.weight_NK.double().t()),
            "rounding dx": _relative(reference.fp8_grad_input(dy, **kept), dy.double() @ self.weight_NK.double()),
        }
        if self.x_TK.is_cuda:
            for name, fast in (("fast", True), ("exact", False)):
                y, dx = (self.product(forward=forward, fast=fast)[:256] for forward in (True, False))
                found[f"sums y {name}"] = _relative(y, reference.fp8_forward(x, **kept))
                found[f"sums dx {name}"] = _relative(dx, reference.fp8_grad_input(dy, **kept))
                # sums that drop bits towards zero would shrink a gradient by a little in every layer
                found[f"shrinks dx {name}"] = _shrinks(dx, reference.fp8_grad_input(dy, **kept))
        return found


def _eager(works: dict[str, Work]) -> dict[str, float]:
    found = {}
    for name, work in works.items():
        begun = time.perf_counter()
        work()
        found[name] = (time.perf_counter() - begun) * 1e3
    return found


def block_scaled(linear: _Linear) -> dict[str, Any]:
    """Time the product with 1 x 128 scales of rows and 128 x 128 scales of the weight, or say why there is none."""
    (rows, num_in), num_out = linear.x_TK.shape, linear.codes_NK.shape[0]
    try:
        # its own layout: rows of scales one below the other, as the library asks
        of_rows = torch.ones(num_in // 128, rows, device="cuda").t()
        of_weight = torch.ones(num_out // 128, num_in // 128, device="cuda").t()

        def work() -> Tensor:
            return torch._scaled_mm(
                linear.rows.codes_TK,
                linear.codes_NK.t(),
                scale_a=of_rows,
                scale_b=of_weight,
                out_dtype=torch.bfloat16,
                use_fast_accum=False,
            )

        work()
        return {"y by blocks": median_replay(work) * 1e3}
    except (RuntimeError, ValueError) as error:
        return {"y by blocks": " ".join(str(error).split())[:160]}


def measure(
    shapes: dict[str, tuple[int, int]], *, tokens: list[int], blocks: bool, device: str
) -> Iterator[dict[str, Any]]:
    """Yield a row for each linear and number of tokens."""
    for name, (num_in, num_out) in shapes.items():
        for rows in tokens:
            linear = _Linear(num_in, num_out, rows=rows, device=device)
            works = linear.works()
            if device == "cuda":
                times = {
                    label: ms
                    for label, (ms, _) in interleaved(works, baseline="bf16 y", rounds=3, block_seconds=0.02).items()
                }
            else:
                times = _eager(works)
            row: dict[str, Any] = {"linear": name, "tokens": rows, **{f"{k} us": v * 1e3 for k, v in times.items()}}
            row["speedup"] = (times["bf16 y"] + times["bf16 dx"]) / (times["whole y"] + times["whole dx"])
            row["TFLOP/s"] = 4 * rows * num_in * num_out / (times["whole y"] + times["whole dx"]) / 1e9
            row["round GB/s"] = 3 * rows * num_in / times["round x"] / 1e6
            if rows == tokens[-1]:
                row |= linear.errors()
            if blocks and device == "cuda":
                row |= block_scaled(linear)
            del linear, works
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1024, 4096, 8192])
    parser.add_argument("--blocks", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "fp8_linear.json")
    options = parser.parse_args()
    need_gpu(shape="tiny" if options.tiny else None)
    torch.manual_seed(0)
    device = "cpu" if options.tiny else "cuda"
    rows: list[dict[str, Any]] = []
    tokens = [16, 48] if options.tiny else options.tokens
    for row in measure(TINY if options.tiny else SHAPES, tokens=tokens, blocks=options.blocks, device=device):
        rows.append(row)
        write_result(options.out, question=QUESTION, headline=headline(rows), rows=rows)
    print_table(rows, columns=("linear", "tokens", "bf16 y us", "whole y us", "bf16 dx us", "whole dx us", "speedup"))
    print_table(rows, columns=("linear", "tokens", "round x us", "round dy us", "transpose us", "round GB/s"))
    if device == "cuda":
        print_table(rows, columns=("linear", "tokens", "y fast us", "y exact us", "dx fast us", "dx exact us"))
    last = [row for row in rows if "rounding y" in row]
    print_table(last, columns=[key for key in last[0] if key.startswith(("linear", "rounding", "sums", "shrinks"))])
    if options.blocks:
        print_table(rows, columns=("linear", "tokens", "y exact us", "y by blocks"))


def headline(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The whole linears of a layer in fp8 against bf16, by number of tokens."""
    found = {}
    for tokens in sorted({row["tokens"] for row in rows}):
        own = [row for row in rows if row["tokens"] == tokens]
        times = [sum(row[f"{kind} {way} us"] for row in own for way in ("y", "dx")) for kind in ("bf16", "whole")]
        found[f"fp8_linears_speedup_{tokens}"] = times[0] / times[1]
    return found


if __name__ == "__main__":
    main()
