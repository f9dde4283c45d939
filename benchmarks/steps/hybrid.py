"""A step of many adapters on a hybrid model (gated delta rule and attention) against PEFT, both with the same kernels.

With flash-linear-attention installed transformers calls its kernels on both sides; the packed pass gives them the
bounds of the sequences. Without it both sides take transformers' torch form.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
from pathlib import Path
from typing import Any

import torch

from benchmarks.bridged_shapes import bridged, bridged_config, bridged_executor, random_model
from benchmarks.llama_shapes import rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import median_seconds, peft_loop, trial_specs

QUESTION = "How much faster do many adapters of a hybrid model train in one pack than one at a time with PEFT?"
LENGTH = 200


def main() -> None:
    """Measure, print, write after every part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("qwen3.5-9b", "tiny-hybrid"), default="qwen3.5-9b")
    parser.add_argument("--num-layers", type=int, default=None)
    parser.add_argument("--adapters", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    need_gpu(shape="tiny" if options.shape.startswith("tiny") else options.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    config = bridged_config(options.shape, num_layers=options.num_layers)
    tokens = rows_of_lengths([(1, LENGTH - 1)] * 64, vocab_size=config["vocab_size"])
    rows: list[dict[str, Any]] = []
    headline: dict[str, float] = {}

    def add(way: str, adapters: int, seconds: float) -> None:
        rate = adapters * LENGTH / seconds
        rows.append({"way": way, "adapters": adapters, "step_ms": 1e3 * seconds, "tokens_per_second": rate})
        print(rows[-1], flush=True)
        write_result(
            options.out or RESULTS / "hybrid_vs_peft.json",
            question=QUESTION,
            headline=headline,
            rows=rows,
            notes={
                "r": 16,
                "length": LENGTH,
                "shape": options.shape,
                "num_layers": config["num_hidden_layers"],
                "flash_linear_attention": importlib.util.find_spec("fla") is not None,
            },
        )

    decoder = bridged(config, random_model(config, device=device, dtype=dtype), device=device)
    specs = trial_specs([16] * options.adapters, batch_size=1)
    executor = bridged_executor(decoder, specs, tokens, token_budget=options.adapters * LENGTH)
    own = median_seconds(executor.step, repeats=options.repeats)
    add("bridged", options.adapters, own)
    del executor, decoder
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    step, _ = peft_loop(random_model(config, device=device, dtype=dtype), tokens, batch_size=1, device=device)
    peft = median_seconds(step, repeats=options.repeats, warmups=3)
    headline["hybrid_vs_peft"] = peft / (own / options.adapters)
    add("peft", 1, peft)
    print_table(rows, columns=list(rows[0]))
    print(headline)


if __name__ == "__main__":
    main()
