"""Tokens per second of a large pack on the CPU under several token budgets of a micro-batch."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.steps.packed_vs_alone_cpu import executor_step, measure_cell, quickstart


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budgets", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.4, help="of one budget in one round")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    parser.add_argument("--out", type=Path, default=RESULTS / "token_budget_cpu.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    decoder, rows = quickstart()
    steps = {
        str(budget): executor_step(
            decoder, rows, trials=arguments.trials, batch_size=arguments.batch_size, token_budget=budget
        )
        for budget in arguments.budgets
    }
    rates = measure_cell(steps, rounds=arguments.rounds, seconds=arguments.seconds)
    best = max(rates.values())
    found = [
        {"token_budget": int(budget), "tokens_per_second": round(rate), "of_best": rate / best}
        for budget, rate in rates.items()
    ]
    print_table(found, columns=list(found[0]))
    write_result(
        arguments.out,
        question="How many tokens should a micro-batch have on a CPU?",
        headline={f"cpu_tokens_per_second_{row['token_budget']}": row["tokens_per_second"] for row in found},
        rows=found,
        notes={
            "trials": arguments.trials,
            "batch_size": arguments.batch_size,
            "model": "examples/quickstart/base_model",
        },
    )


if __name__ == "__main__":
    main()
