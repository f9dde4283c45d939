"""What a step costs when transformers computes the model: over the native family, and against PEFT.

Of Llama's shape, which has both. No pass is recorded on either side: a bridged model has no recorded ones.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import Any

import torch

from benchmarks.bridged_shapes import bridged, bridged_config, bridged_executor, random_model
from benchmarks.llama_shapes import decoder_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import build_executor, median_seconds, peft_loop, trial_specs

QUESTION = "What does a step cost when transformers computes the model, over the native family and against PEFT?"
LENGTH = 200
ADAPTERS = 16
LONG = 512
# what a step of PEFT takes on the fastest host that it was measured on, ms
FAST_HOST = {"8b": 157.0, "1b": 96.0}


def freed() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def native_seconds(options: argparse.Namespace, *, device: str, dtype: torch.dtype) -> dict[str, float]:
    """Return the seconds of a step of 16 adapters over 8,192 tokens, and of 32 with a short row each."""
    config = decoder_config(options.shape, num_layers=options.num_layers)
    decoder = random_decoder(config, device=device, dtype=dtype)
    found = {}
    for name, adapters, length in (("long", ADAPTERS, LONG), ("short", 2 * ADAPTERS, LENGTH)):
        rows = rows_of_lengths([(1, length - 1)] * 64, vocab_size=config.vocab_size)
        specs = trial_specs([16] * adapters, batch_size=1)
        executor = build_executor(decoder, specs, rows, token_budget=adapters * length)
        found[name] = median_seconds(executor.step, repeats=options.repeats)
        del executor
        freed()
    return found


def bridged_seconds(options: argparse.Namespace, *, device: str, dtype: torch.dtype) -> dict[str, float]:
    """Return the same of the bridged model."""
    config = bridged_config(options.shape, num_layers=options.num_layers)
    decoder = bridged(config, random_model(config, device=device, dtype=dtype), device=device)
    found = {}
    for name, adapters, length in (("long", ADAPTERS, LONG), ("short", 2 * ADAPTERS, LENGTH)):
        rows = rows_of_lengths([(1, length - 1)] * 64, vocab_size=config["vocab_size"])
        specs = trial_specs([16] * adapters, batch_size=1)
        executor = bridged_executor(decoder, specs, rows, token_budget=adapters * length)
        found[name] = median_seconds(executor.step, repeats=options.repeats)
        del executor
        freed()
    return found


def peft_seconds(options: argparse.Namespace, *, device: str, dtype: torch.dtype) -> float:
    """Return the seconds of a step of PEFT's at batch 1."""
    config = bridged_config(options.shape, num_layers=options.num_layers)
    rows = rows_of_lengths([(1, LENGTH - 1)] * 64, vocab_size=config["vocab_size"])
    step, _ = peft_loop(random_model(config, device=device, dtype=dtype), rows, batch_size=1, device=device)
    return median_seconds(step, repeats=options.repeats + 3, warmups=3)


def main() -> None:
    """Measure, print, write after every part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("8b", "1b", "tiny"), default="8b")
    parser.add_argument("--num-layers", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    need_gpu(shape=options.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    rows: list[dict[str, Any]] = []
    headline: dict[str, float] = {}

    def add(way: str, pack: str, seconds: float, *, adapters: int, length: int) -> None:
        rows.append(
            {"way": way, "pack": pack, "step_ms": 1e3 * seconds, "tokens_per_second": adapters * length / seconds}
        )
        print(rows[-1], flush=True)
        write_result(
            options.out or RESULTS / f"bridge_{options.shape}.json",
            question=QUESTION,
            headline=headline,
            rows=rows,
            notes={"r": 16, "shape": options.shape, "num_layers": options.num_layers or "all"},
        )

    own = bridged_seconds(options, device=device, dtype=dtype)
    freed()
    for name, adapters, length in (("long", ADAPTERS, LONG), ("short", 2 * ADAPTERS, LENGTH)):
        add("bridged", f"{adapters} x {length}", own[name], adapters=adapters, length=length)
    native = native_seconds(options, device=device, dtype=dtype)
    freed()
    headline[f"bridge_over_native_{options.shape}"] = own["long"] / native["long"]
    headline[f"bridge_over_native_{options.shape}_short_rows"] = own["short"] / native["short"]
    for name, adapters, length in (("long", ADAPTERS, LONG), ("short", 2 * ADAPTERS, LENGTH)):
        add("native", f"{adapters} x {length}", native[name], adapters=adapters, length=length)
    peft = peft_seconds(options, device=device, dtype=dtype)
    each = own["short"] / (2 * ADAPTERS)
    headline[f"bridge_vs_peft_{options.shape}_bs1"] = peft / each
    if options.shape in FAST_HOST and options.num_layers is None:
        headline[f"bridge_vs_peft_{options.shape}_bs1_fast_host"] = FAST_HOST[options.shape] / 1e3 / each
    add("peft", f"1 x {LENGTH}", peft, adapters=1, length=LENGTH)
    print_table(rows, columns=list(rows[0]))
    print(headline)


if __name__ == "__main__":
    main()
