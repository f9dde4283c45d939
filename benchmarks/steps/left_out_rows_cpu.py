"""What it saves on a CPU that the last layer computes only rows that a loss reads (decision 0090).

Steps of packs of the quickstart's model, with rows of a prompt and an answer of random tokens: one way as it is, one in
which every row of the last layer is computed. Both take turns in one process; the clock is its CPU time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.llama_shapes import rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.steps.packed_vs_peft_cpu import RANK, both_models, cohort_step

# trials, batch size, tokens of prompt and answer
CELLS = ((8, 2, 18, 12), (8, 8, 18, 12), (1, 2, 18, 12), (8, 2, 64, 192), (8, 2, 128, 128))


def seconds_of(step: Callable[[], int], *, leaves_out: bool, times: int) -> float:
    """Return the CPU seconds of a step, of ``times`` in a row."""
    with mock.patch("cohort.models.decoder.Decoder.leaves_out_rows", return_value=leaves_out):
        begun = time.process_time()
        for _ in range(times):
            step()
        return (time.process_time() - begun) / times


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS / "left_out_rows_cpu.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    decoder, _ = both_models("quickstart", Path("build"))
    found: list[dict[str, Any]] = []
    for trials, batch_size, prompt, answer in CELLS:
        rows = rows_of_lengths([(prompt, answer)] * 256, vocab_size=decoder.config.vocab_size)
        steps = {out: cohort_step(decoder, rows, trials=trials, batch_size=batch_size) for out in (False, True)}
        times = max(1, 512 // (trials * batch_size * (prompt + answer)))
        taken: dict[bool, list[float]] = {False: [], True: []}
        # the first round asks the BLAS
        for number in range(arguments.rounds + 1):
            for leaves_out, step in steps.items():
                seconds = seconds_of(step, leaves_out=leaves_out, times=times)
                if number:
                    taken[leaves_out].append(seconds)
        ratios = [whole / least for whole, least in zip(taken[False], taken[True], strict=True)]
        cell = {"trials": trials, "batch_size": batch_size, "prompt": prompt, "answer": answer}
        times_of = {
            "whole_ms": round(1e3 * statistics.median(taken[False]), 1),
            "left_out_ms": round(1e3 * statistics.median(taken[True]), 1),
        }
        found.append({**cell, **times_of, "speedup": statistics.median(ratios), "least": min(ratios)})
    print_table(found, columns=list(found[0]))
    speedups = [row["speedup"] for row in found]
    write_result(
        arguments.out,
        question="What does it save on a CPU that the last layer computes only rows that a loss reads?",
        headline={"left_out_rows_speedup_min": min(speedups), "left_out_rows_speedup_max": max(speedups)},
        rows=found,
        notes={"model": "examples/quickstart/base_model", "r": RANK, "threads": 1, "clock": "CPU time of the process"},
    )


if __name__ == "__main__":
    main()
