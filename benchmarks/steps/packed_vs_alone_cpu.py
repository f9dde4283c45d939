"""Tokens per second of 1 to 32 trials in one pack against the same trials one after the other, on the CPU.

The quickstart's base model and data. Both sides and PEFT with a plain loop are timed in turn within each cell, and the
best round of each counts, so that what else the machine does meets all three alike and hardly at all.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from benchmarks.steps.step_timing import build_executor, peft_loop, trial_specs
from cohort.data.loading import load_dataset
from cohort.data.settings import DatasetSettings
from cohort.data.tokenised import TokenisedRows
from cohort.models.decoder import Decoder
from cohort.models.tokenizer import load_tokenizer
from cohort.models.weights import load_decoder

QUICKSTART = REPOSITORY / "examples" / "quickstart"
RANK = 16


def quickstart() -> tuple[Decoder, TokenisedRows]:
    """Return the quickstart's base model and its training rows."""
    model = QUICKSTART / "base_model"
    settings = DatasetSettings(
        train=str(QUICKSTART / "train.jsonl"), validation=str(QUICKSTART / "validation.jsonl"), max_length=64
    )
    rows = load_dataset(settings, tokenizer=load_tokenizer(str(model)), use_cache=False).train
    return load_decoder(model, dtype="float32", device="cpu"), rows


def executor_step(decoder: Decoder, rows: TokenisedRows, *, trials: int, batch_size: int, token_budget: int) -> Any:
    """Return a step of a pack that returns how many tokens it trained."""
    executor = build_executor(
        decoder, trial_specs([RANK] * trials, batch_size=batch_size), rows, token_budget=token_budget
    )

    def step() -> int:
        return sum(event.num_tokens for event in executor.step())

    return step


def tokens_per_second(step: Callable[[], int], *, seconds: float) -> float:
    """Repeat ``step`` for about ``seconds`` and return its rate.

    With one thread the process's own CPU time is taken, which other programs do not lengthen; with several, wall time.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    tokens, start = 0, clock()
    while True:
        tokens += step()
        spent = clock() - start
        if spent >= seconds:
            return tokens / spent


def measure_cell(steps: dict[str, Callable[[], int]], *, rounds: int, seconds: float) -> dict[str, float]:
    """Return the best rate of each way over the rounds, timed in turn: what else the machine does only slows down."""
    for step in steps.values():
        step()
        step()
    rates = dict.fromkeys(steps, 0.0)
    for _ in range(rounds):
        for name, step in steps.items():
            rates[name] = max(rates[name], tokens_per_second(step, seconds=seconds))
    return rates


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--token-budget", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=0.2, help="of one way in one round")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch, for all ways")
    parser.add_argument("--out", type=Path, default=RESULTS / "packed_vs_alone_cpu.json")
    arguments = parser.parse_args()
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(arguments.threads)
    decoder, rows = quickstart()
    found = []
    for batch_size in arguments.batch_sizes:
        model = AutoModelForCausalLM.from_pretrained(QUICKSTART / "base_model", dtype=torch.float32)
        peft, _ = peft_loop(model, rows, batch_size=batch_size, r=RANK, device="cpu")
        for trials in arguments.trials:
            sizes = {"batch_size": batch_size, "token_budget": arguments.token_budget}
            steps = {
                "packed": executor_step(decoder, rows, trials=trials, **sizes),
                "alone": executor_step(decoder, rows, trials=1, **sizes),
                "peft": peft,
            }
            rates = measure_cell(steps, rounds=arguments.rounds, seconds=arguments.seconds)
            row = {"batch_size": batch_size, "trials": trials}
            row |= {f"{name}_tokens_per_second": round(rate) for name, rate in rates.items()}
            found.append(
                row
                | {
                    "packed_vs_alone": rates["packed"] / rates["alone"],
                    "packed_vs_peft": rates["packed"] / rates["peft"],
                }
            )
            print_table(found[-1:], columns=list(found[-1]))
    print_table(found, columns=list(found[0]))
    last = {row["batch_size"]: row for row in found}
    headline = {f"packed_vs_alone_cpu_bs{size}": row["packed_vs_alone"] for size, row in last.items()}
    headline |= {f"packed_vs_peft_cpu_bs{size}": row["packed_vs_peft"] for size, row in last.items()}
    write_result(
        arguments.out,
        question="How much faster do trials of the quickstart train in one pack than one at a time, on a CPU?",
        headline=headline,
        rows=found,
        notes={
            "model": "examples/quickstart/base_model, float32",
            "mean_row_tokens": float(rows.lengths.mean()),
            "r": RANK,
            "token_budget": arguments.token_budget,
            "clock": "CPU time of the process" if arguments.threads == 1 else "wall time",
            "best_of_rounds": arguments.rounds,
            "seconds_per_way_and_round": arguments.seconds,
            "peft": "PEFT, transformers, float32, SDPA attention, AdamW, rows padded to the longest of the batch",
        },
    )


if __name__ == "__main__":
    main()
