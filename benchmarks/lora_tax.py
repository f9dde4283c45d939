"""What a packed training step costs over the frozen backbone alone, on the same tokens."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from llama_shapes import decoder_config, num_parameters, random_decoder, rows_of_lengths
from measure import RESULTS, matrix_ceiling, print_table, write_result
from step_timing import build_executor, frozen_step, median_seconds, trial_specs

from cohort.adapters.mlp import PackedMlp
from cohort.models.decoder import Decoder

MIXED = (8, 16, 32, 64)


def measure(decoder: Decoder, *, length: int, repeats: int) -> list[dict[str, Any]]:
    """Return rows for packs of 8 adapters at r 16 and 32 of mixed ranks, all tokens trained."""
    packs = [
        ("8 x r16, 8192 tokens", [16] * 8, 16),
        ("32 mixed, 8192 tokens", [MIXED[i % 4] for i in range(32)], 32),
        ("32 mixed, 16384 tokens", [MIXED[i % 4] for i in range(32)], 32),
    ]
    found = []
    for name, ranks, num_sequences in packs:
        tokens = 16384 if "16384" in name else 8192
        each = tokens // num_sequences if num_sequences >= len(ranks) else length
        per_adapter = num_sequences // len(ranks)
        rows = rows_of_lengths([(1, each - 1)] * 64, vocab_size=decoder.config.vocab_size)
        frozen = median_seconds(frozen_step(decoder, rows, range(num_sequences)), repeats=repeats)
        executor = build_executor(decoder, trial_specs(ranks, batch_size=per_adapter), rows, token_budget=tokens)
        packed = median_seconds(executor.step, repeats=repeats)
        del executor
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        found.append(
            {
                "pack": name,
                "sequence_length": each,
                "frozen_ms": frozen * 1e3,
                "packed_ms": packed * 1e3,
                "tax": packed / frozen,
                "frozen_tokens_per_second": tokens / frozen,
                "packed_tokens_per_second": tokens / packed,
            }
        )
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--num-layers", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--composed-mlp", action="store_true", help="the feed-forward block from packed linears alone")
    parser.add_argument("--out", type=Path, default=RESULTS / "lora_tax.json")
    arguments = parser.parse_args()
    PackedMlp.fused = not arguments.composed_mlp
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = decoder_config(arguments.shape, num_layers=arguments.num_layers)
    ceiling = matrix_ceiling() if device == "cuda" else float("nan")
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    decoder = random_decoder(config, device=device, dtype=dtype)
    rows = measure(decoder, length=512, repeats=arguments.repeats)
    parameters = num_parameters(config)
    for row in rows:
        row["mfu"] = 4 * parameters * row["packed_tokens_per_second"] / (ceiling * 1e12)
    print_table(rows, columns=list(rows[0]))
    headline = {
        "lora_tax_8x16": rows[0]["tax"],
        "lora_tax_32_mixed": rows[1]["tax"],
        "lora_tax_32_mixed_16384_tokens": rows[2]["tax"],
        f"mfu_{arguments.shape}": rows[0]["mfu"],
        "frozen_tokens_per_second": rows[0]["frozen_tokens_per_second"],
        "matrix_ceiling_tflops": ceiling,
    }
    write_result(
        arguments.out,
        question="What does a packed training step cost over the frozen backbone alone?",
        headline=headline,
        rows=rows,
        notes={"parameters": parameters, "shape": arguments.shape, "num_layers": config.num_layers},
    )


if __name__ == "__main__":
    main()
