"""Attention over packed sequences at Llama-3.1-8B heads: our ragged kernels, padded SDPA, and varlen of torch."""

from __future__ import annotations

import argparse
import inspect
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import gsm8k_lengths
from benchmarks.measure import RESULTS, median_replay, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.kernels.attention import AttentionTiles, packed_attention
from cohort.kernels.attention import triton as kernels

HEADS, KV_HEADS, WIDTH, TOKENS = 32, 8, 128, 8192


def layouts() -> dict[str, list[int]]:
    """Sequence lengths by name, 8,192 rows in all."""
    ragged: list[int] = []
    for prompt, completion in gsm8k_lengths():
        if sum(ragged) + prompt + completion > TOKENS:
            break
        ragged.append(prompt + completion)
    return {"16 x 512": [512] * 16, "GSM8K": ragged, "40 x 200": [200] * 40, "4 x 2048": [2048] * 4}


def both_ways(forward: Callable[..., torch.Tensor], tensors: list[torch.Tensor]) -> Callable[[], None]:
    """Return one forward and backward of ``forward``."""
    q, k, v, do = tensors
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]

    def work() -> None:
        for leaf in leaves:
            leaf.grad = None
        forward(*leaves).backward(do)

    return work


def padded(lengths: list[int]) -> Callable[..., torch.Tensor]:
    """Batched SDPA over sequences of one length: a view of the stream, without any padding."""
    length = lengths[0]

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.view(-1, length, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return o.transpose(1, 2).reshape(-1, HEADS, WIDTH)

    return forward


def varlen(lengths: list[int]) -> Callable[..., torch.Tensor]:
    """Varlen attention of torch, key-value heads repeated outside the timing where it cannot share them."""
    from torch.nn.attention.varlen import varlen_attn

    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")
    longest = max(lengths)

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        # what says "causal" changed its name between torch releases
        causal = {"is_causal": True} if "is_causal" in inspect.signature(varlen_attn).parameters else {}
        return varlen_attn(q, k, v, offsets, offsets, longest, longest, **(causal or {"window_size": (-1, 0)}))

    return forward


def main() -> None:
    """Measure the peers, then our kernels with several tile settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--variants", action="store_true", help="try several tile settings, not only the committed ones"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "attention.json")
    arguments = parser.parse_args()
    need_gpu()
    rows: list[dict[str, Any]] = []
    for name, lengths in layouts().items():
        total = sum(lengths)
        q, do = (torch.randn(total, HEADS, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        k, v = (torch.randn(total, KV_HEADS, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        row: dict[str, Any] = {"layout": name, "rows": total}
        if len(set(lengths)) == 1:
            row["sdpa_ms"] = median_replay(both_ways(padded(lengths), [q, k, v, do]))
        try:
            row["varlen_ms"] = median_replay(both_ways(varlen(lengths), [q, k, v, do]))
        except (RuntimeError, TypeError, ImportError, ValueError):
            repeated = [x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v)]
            try:
                row["varlen_ms"] = median_replay(both_ways(varlen(lengths), [q, *repeated, do]))
            except (RuntimeError, TypeError, ImportError, ValueError) as error:
                row["varlen_error"] = str(error)[:80]
        offsets = [0, *itertools.accumulate(lengths)]
        tiles = AttentionTiles(offsets, device="cuda")
        ours = both_ways(lambda *x, tiles=tiles: packed_attention(*x, tiles=tiles), [q, k, v, do])
        row["ours_ms"] = median_replay(ours)
        rows.append(row)
        if arguments.variants:
            rows += variants(name, [q, k, v, do], tiles)
    print_table(rows, columns=["layout", "rows", "sdpa_ms", "varlen_ms", "ours_ms", "pass", "setting", "ms"])
    headline = {f"ours_ms_{row['layout']}": row["ours_ms"] for row in rows if "ours_ms" in row}
    write_result(arguments.out, question="How fast is attention over packed sequences?", headline=headline, rows=rows)


def variants(name: str, tensors: list[torch.Tensor], tiles: AttentionTiles) -> list[dict[str, Any]]:
    """Time each pass by itself under several tile settings."""
    q, k, v, do = tensors
    o, lse = kernels.attention_forward(q, k, v, tiles=tiles, window=None)
    found = []
    passes: list[tuple[str, dict[str, int], list[tuple[int, int, int, int]]]] = [
        (
            "forward",
            kernels.FORWARD,
            [(128, 64, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3), (128, 128, 8, 2), (128, 64, 4, 3)],
        ),
        ("dq", kernels.QUERY_GRADIENT, [(128, 64, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3), (64, 32, 4, 3)]),
        (
            "dkv",
            kernels.KEY_GRADIENT,
            [(64, 64, 4, 2), (64, 64, 8, 2), (64, 128, 8, 2), (32, 64, 4, 3), (32, 128, 8, 2)],
        ),
    ]
    for which, settings, candidates in passes:
        before = dict(settings)
        for rows, columns, num_warps, num_stages in candidates:
            settings.update(rows=rows, columns=columns, num_warps=num_warps, num_stages=num_stages)
            if which == "forward":
                work = lambda: kernels.attention_forward(q, k, v, tiles=tiles, window=None)  # noqa: E731
            else:
                work = lambda: kernels.attention_backward(  # noqa: E731
                    do, q_THE=q, k_TGE=k, v_TGE=v, o_THE=o, lse_HT=lse, tiles=tiles, window=None
                )
            try:
                milliseconds = median_replay(work)
            except Exception as error:  # a setting that does not compile is no result
                found.append({"layout": name, "pass": which, "setting": str((rows, columns)), "ms": str(error)[:40]})
            else:
                setting = f"{rows} {columns} {num_warps} {num_stages}"
                found.append({"layout": name, "pass": which, "setting": setting, "ms": milliseconds})
            settings.update(before)
    return found


if __name__ == "__main__":
    main()
