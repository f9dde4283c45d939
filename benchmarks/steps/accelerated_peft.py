"""A training step of a PEFT model, as it is and after ``accelerate(model)``."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.llama_shapes import SHAPES, decoder_config, rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import median_seconds, peft_step
from cohort.integrations.peft import accelerate


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=8, help="the cost of a layer does not depend on their number")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    need_gpu(shape=arguments.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = decoder_config(arguments.shape, num_layers=arguments.num_layers)
    rows = rows_of_lengths([(1, arguments.length - 1)] * 64, vocab_size=config.vocab_size)
    found = []
    for batch_size in arguments.batch_sizes:
        step, model = peft_step(
            arguments.shape, rows, batch_size=batch_size, device=device, num_layers=arguments.num_layers
        )
        seconds = {"peft": median_seconds(step, repeats=arguments.repeats)}
        for name, fuses in (("packed", False), ("packed_siblings", True)):
            accelerate(model, fuse_siblings=fuses)
            seconds[name] = median_seconds(step, repeats=arguments.repeats)
        del step, model
        if device == "cuda":
            torch.cuda.empty_cache()
        found.append(
            {
                "batch_size": batch_size,
                **{f"{name}_ms": 1e3 * own for name, own in seconds.items()},
                "speed_up": seconds["peft"] / seconds["packed_siblings"],
            }
        )
    print_table(found, columns=list(found[0]))
    write_result(
        arguments.out or RESULTS / f"accelerated_peft_{arguments.shape}.json",
        question="How much faster is a step of a PEFT model after accelerate(model)?",
        headline={f"accelerate_{arguments.shape}_bs{row['batch_size']}": row["speed_up"] for row in found},
        rows=found,
        notes={"length": arguments.length, "r": 16, "num_layers": config.num_layers},
    )


if __name__ == "__main__":
    main()
