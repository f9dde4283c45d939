"""What it saves on a GPU that the last layer computes only rows that a loss reads (decision 0095).

Steps of packs with random weights and tokens, launched and recorded, each two ways: the last layer computes all rows,
or those that a loss reads. Both ways take turns in one process.

``python -m benchmarks.steps.left_out_rows_gpu [--shape 8b] [--layers 32]``; ``--shape tiny`` tries it out on any
device.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import decoder_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import alternating_medians, build_executor, trial_specs
from cohort.core.numerics import Numerics
from cohort.models.decoder import Decoder
from cohort.training.cuda_graphs.few_layers import all_rows
from cohort.training.cuda_graphs.recorded_shapes import launching_rows, most_recorded_tokens

QUESTION = "What does it save on a GPU that the last layer computes only rows that a loss reads?"
# trials, batch size, tokens of prompt and answer; the last has hardly anything to leave out
CELLS = ((8, 2, 150, 105), (8, 4, 170, 85), (2, 2, 150, 105), (8, 2, 1, 254))
TINY_CELLS = ((2, 2, 12, 8),)


def measured(
    decoder: Decoder, cell: Sequence[int], *, numerics: Numerics, graph_tokens: int, warmups: int, repeats: int
) -> dict[str, Any]:
    """Return the medians of both ways of a step; both have settled on the sizes that they record."""
    trials, batch_size, prompt, answer = cell
    rows = rows_of_lengths([(prompt, answer)] * 64, vocab_size=decoder.config.vocab_size)
    decoder.use_exact_products(exact=numerics is Numerics.EXACT)
    steps: dict[str, Callable[[], object]] = {}
    executors: list[Any] = []
    for way in ("whole", "left_out"):
        executor = build_executor(
            decoder,
            trial_specs((16,) * trials, batch_size=batch_size),
            rows,
            token_budget=16384,
            graph_tokens=graph_tokens,
            numerics=numerics,
        )

        def step(executor: Any = executor, way: str = way) -> None:
            with all_rows(decoder) if way == "whole" else nullcontext():
                executor.step()

        steps[way] = step
        executors.append(executor)
    times = alternating_medians(steps, warmups=warmups, repeats=repeats)
    # a pass of many rows is launched though smaller ones are recorded
    is_recorded = graph_tokens > 0 and all(own.captured.num_replays > 0 for own in executors)
    row: dict[str, Any] = {"numerics": str(numerics), "recorded": is_recorded, "trials": trials}
    row |= {"batch_size": batch_size, "prompt": prompt, "answer": answer}
    row |= {f"{way}_ms": round(1e3 * seconds, 3) for way, seconds in times.items()}
    return row | {"speedup": times["whole"] / times["left_out"]}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--numerics", nargs="*", type=Numerics, default=[Numerics.EXACT, Numerics.FAST])
    parser.add_argument("--cells", nargs="*", type=int, default=range(len(CELLS)), help="which of the packs, from 0 on")
    parser.add_argument("--out", type=Path, default=RESULTS / "left_out_rows_gpu.json")
    arguments = parser.parse_args()
    need_gpu(shape=arguments.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = decoder_config(arguments.shape, num_layers=arguments.layers)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    decoder = random_decoder(config, device=device, dtype=dtype)
    found = []
    cells = TINY_CELLS if arguments.shape == "tiny" else [CELLS[place] for place in arguments.cells]
    for numerics in arguments.numerics:
        recorded = most_recorded_tokens(numerics, launching=launching_rows(config)) if device == "cuda" else 0
        for graph_tokens in sorted({0, recorded}):
            for cell in cells:
                # a size is recorded once what it loses has added up
                warmups = 16 if graph_tokens else 3
                row = measured(
                    decoder,
                    cell,
                    numerics=numerics,
                    graph_tokens=graph_tokens,
                    warmups=warmups,
                    repeats=arguments.repeats,
                )
                print_table([row], columns=list(row))
                found.append(row)
                if device == "cuda":
                    torch.cuda.empty_cache()
    # of packs with something to leave out, where any of them was measured
    speedups = [row["speedup"] for row in found if row["prompt"] > 1] or [row["speedup"] for row in found]
    write_result(
        arguments.out,
        question=QUESTION,
        headline={"left_out_rows_gpu_speedup_min": min(speedups), "left_out_rows_gpu_speedup_max": max(speedups)},
        rows=found,
        notes={"shape": arguments.shape, "layers": config.num_layers, "r": 16},
    )


if __name__ == "__main__":
    main()
