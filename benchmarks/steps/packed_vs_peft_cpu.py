"""Tokens per CPU second of Cohort, one trial alone and eight in one pack, against a plain PEFT loop, on a CPU.

The quickstart's model and a Llama of 44 million parameters with random weights; samples of 32 and of 256 tokens; batch
2 and 8; r 16 on all linears. All ways of a cell take turns in short blocks, and only blocks of one round are compared:
the clock is the process's own CPU time, which other programs do not lengthen, but caches are shared with them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import hf_config, rows_of_lengths
from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from benchmarks.steps.step_timing import build_executor, peft_loop, trial_specs
from cohort.data.tokenised import TokenisedRows
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder

QUICKSTART = REPOSITORY / "examples" / "quickstart" / "base_model"
MODELS = ("quickstart", "44m")
RANK = 16
TRIALS = 8
# the executor's own for a CPU
TOKEN_BUDGET = 2048


def both_models(name: str, folder: Path) -> tuple[Decoder, Callable[[], Any]]:
    """Return Cohort's decoder of a model, and a function that loads it for PEFT; both have the same weights."""
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    if name == "quickstart":
        path = QUICKSTART
    else:
        path = folder / name
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(**hf_config(name))).save_pretrained(path)

    def load() -> Any:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    return load_decoder(path, dtype="float32", device="cpu"), load


def rows_for(decoder: Decoder, length: int) -> TokenisedRows:
    """Return 256 rows of ``length`` tokens, three quarters of which are trained."""
    return rows_of_lengths([(length // 4, length - length // 4)] * 256, vocab_size=decoder.config.vocab_size)


def cohort_step(decoder: Decoder, rows: TokenisedRows, *, trials: int, batch_size: int) -> Callable[[], int]:
    """Return a step of a pack that returns how many tokens it trained."""
    specs = trial_specs([RANK] * trials, batch_size=batch_size)
    executor = build_executor(decoder, specs, rows, token_budget=TOKEN_BUDGET)

    def step() -> int:
        return sum(event.num_tokens for event in executor.step())

    return step


def rate(step: Callable[[], int], *, seconds: float) -> float:
    """Repeat ``step`` for at least ``seconds`` of CPU time and return its tokens per CPU second."""
    tokens, begun = 0, time.process_time()
    while True:
        tokens += step()
        spent = time.process_time() - begun
        if spent >= seconds:
            return tokens / spent


def measure_cell(steps: dict[str, Callable[[], int]], *, rounds: int, seconds: float) -> dict[str, float]:
    """Return the median rate of each way, and of its ratio to PEFT's in the same round the median and both ends."""
    for step in steps.values():
        step()
        step()
    rates: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds):
        # every other round goes backwards: what comes after a way depends on the caches that it leaves
        for name, step in list(steps.items())[:: -1 if turn % 2 else 1]:
            rates[name].append(rate(step, seconds=seconds))
    found = {f"{name}_tokens_per_second": float(round(statistics.median(own))) for name, own in rates.items()}
    for name in (name for name in steps if name != "peft"):
        ratios = sorted(ours / theirs for ours, theirs in zip(rates[name], rates["peft"], strict=True))
        found |= {
            f"{name}_vs_peft": statistics.median(ratios),
            f"{name}_vs_peft_least": ratios[0],
            f"{name}_vs_peft_most": ratios[-1],
        }
    # other programs take caches and the memory's bandwidth, which CPU seconds do not leave out
    return {**found, "load_average": os.getloadavg()[0]}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU seconds of one way in one round, at least")
    parser.add_argument("--threads", type=int, default=1, help="of torch, for all ways")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="where the random model is written")
    parser.add_argument("--out", type=Path, default=RESULTS / "packed_vs_peft_cpu.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found: list[dict[str, Any]] = []
    for model in arguments.models:
        decoder, load = both_models(model, arguments.folder)
        for length in arguments.lengths:
            rows = rows_for(decoder, length)
            for batch_size in arguments.batch_sizes:
                peft, _ = peft_loop(load(), rows, batch_size=batch_size, r=RANK, device="cpu")
                steps = {
                    "peft": peft,
                    "alone": cohort_step(decoder, rows, trials=1, batch_size=batch_size),
                    "packed": cohort_step(decoder, rows, trials=TRIALS, batch_size=batch_size),
                }
                cell = {"model": model, "length": length, "batch_size": batch_size}
                found.append(cell | measure_cell(steps, rounds=arguments.rounds, seconds=arguments.seconds))
                print_table(found[-1:], columns=list(found[0]))
    print_table(found, columns=list(found[0]))
    # results of other models, threads or instructions have files, and so numbers, of their own
    name = arguments.out.stem.removeprefix("packed_")
    headline = {f"alone_{name}": min(row["alone_vs_peft"] for row in found)}
    for batch_size in arguments.batch_sizes:
        of_size = [row["packed_vs_peft"] for row in found if row["batch_size"] == batch_size]
        headline[f"packed_{name}_bs{batch_size}"] = min(of_size)
    write_result(
        arguments.out,
        question="How fast do one trial and eight trials in a pack train, against a plain PEFT loop, on a CPU?",
        headline=headline,
        rows=found,
        notes={
            "headline": "the least of all models and lengths",
            "models": {"quickstart": "examples/quickstart/base_model", "44m": "SHAPES['44m'], random weights"},
            "r": RANK,
            "trials": TRIALS,
            "token_budget": TOKEN_BUDGET,
            "clock": "CPU time of the process, all threads together",
            "threads": arguments.threads,
            "peft": "PEFT, transformers, float32, SDPA attention, fused AdamW, rows padded to the longest of the batch",
        },
    )


if __name__ == "__main__":
    main()
