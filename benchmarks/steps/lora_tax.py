"""What a packed training step costs over the frozen backbone alone, on the same tokens.

``--alternate`` times frozen steps, packed steps with augmented products of o and down and packed steps without them in
turns: the difference between the last two is smaller than what separate measurements drift by.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.llama_shapes import SHAPES, decoder_config, num_parameters, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, matrix_ceiling, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import alternating_medians, build_executor, frozen_step, median_seconds, trial_specs
from cohort.adapters.mlp import PackedMlp
from cohort.kernels.backend import Backend, implementation
from cohort.kernels.packed_linear.choice import tiles as choice
from cohort.models.decoder import Decoder

MIXED = (8, 16, 32, 64)
MIXED_NAMES = ("32_mixed", "32_mixed_16384_tokens")


def ask_for_augmented() -> None:
    """Let the table of tiles ask for an augmented product of every linear without siblings that it knows, up to the
    128 rank rows of 8 adapters of rank 16.
    """
    for rows in choice.measured_tiles().values():
        for row in rows:
            if len(row["out_widths"]) == 1:
                row["choice"] |= {"term_forward": "augmented", "augmented_columns": 128}
    choice.choose_tiles.cache_clear()


def without_augmented(step: Callable[[], object]) -> Callable[[], object]:
    """Return ``step`` with every LoRA term apart from the frozen products."""
    kernels = implementation("packed_linear", Backend.TRITON) if torch.cuda.is_available() else None

    def work() -> object:
        off = patch.object(kernels, "augmented_columns", lambda *_, **__: 0) if kernels else nullcontext()
        with off:
            return step()

    return work


def measure(
    decoder: Decoder, *, length: int, repeats: int, most_packs: int, alternate: bool = False
) -> list[dict[str, Any]]:
    """Return rows for packs of 8 adapters at r 16 and 32 of mixed ranks, all tokens trained."""
    packs = [
        ("8 x r16, 8192 tokens", [16] * 8, 16),
        ("32 mixed, 8192 tokens", [MIXED[i % 4] for i in range(32)], 32),
        ("32 mixed, 16384 tokens", [MIXED[i % 4] for i in range(32)], 32),
    ]
    found = []
    for name, ranks, num_sequences in packs[:most_packs]:
        tokens = 16384 if "16384" in name else 8192
        each = tokens // num_sequences if num_sequences >= len(ranks) else length
        per_adapter = num_sequences // len(ranks)
        rows = rows_of_lengths([(1, each - 1)] * 64, vocab_size=decoder.config.vocab_size)
        frozen_alone = frozen_step(decoder, rows, range(num_sequences))
        apart = None
        if not alternate:
            frozen = median_seconds(frozen_alone, repeats=repeats)
        executor = build_executor(decoder, trial_specs(ranks, batch_size=per_adapter), rows, token_budget=tokens)
        if alternate:
            steps = {"frozen": frozen_alone, "packed": executor.step, "apart": without_augmented(executor.step)}
            medians = alternating_medians(steps, repeats=repeats)
            frozen, packed, apart = medians["frozen"], medians["packed"], medians["apart"]
            del steps
        else:
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
            | ({} if apart is None else {"apart_ms": apart * 1e3, "tax_apart": apart / frozen})
        )
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--composed-mlp", action="store_true", help="the feed-forward block from packed linears alone")
    parser.add_argument("--packs", type=int, default=3, choices=(1, 2, 3), help="only this many packs")
    parser.add_argument("--alternate", action="store_true", help="with and without augmented products, in turns")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    need_gpu(shape=arguments.shape)
    PackedMlp.fused = not arguments.composed_mlp
    if arguments.alternate:
        ask_for_augmented()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = decoder_config(arguments.shape, num_layers=arguments.num_layers)
    ceiling = matrix_ceiling() if device == "cuda" else float("nan")
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    decoder = random_decoder(config, device=device, dtype=dtype)
    rows = measure(
        decoder,
        length=512,
        repeats=arguments.repeats,
        most_packs=arguments.packs,
        alternate=arguments.alternate,
    )
    parameters = num_parameters(config)
    for row in rows:
        row["mfu"] = 4 * parameters * row["packed_tokens_per_second"] / (ceiling * 1e12)
    print_table(rows, columns=list(rows[0]))
    headline = {
        "lora_tax_8x16": rows[0]["tax"],
        **{f"lora_tax_{name}": row["tax"] for name, row in zip(MIXED_NAMES, rows[1:], strict=False)},
        f"mfu_{arguments.shape}": rows[0]["mfu"],
        "frozen_tokens_per_second": rows[0]["frozen_tokens_per_second"],
        "matrix_ceiling_tflops": ceiling,
    }
    named = "" if arguments.shape == "8b" else f"_{arguments.shape}"
    write_result(
        arguments.out or RESULTS / f"lora_tax{named}.json",
        question="What does a packed training step cost over the frozen backbone alone?",
        headline=headline,
        rows=rows,
        notes={"parameters": parameters, "shape": arguments.shape, "num_layers": config.num_layers},
    )


if __name__ == "__main__":
    main()
