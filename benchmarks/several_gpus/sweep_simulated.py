"""What would the sweep of 60 trials take on 1, 2, 4 and 8 GPUs, if passes took there what they take on one?

The product's own loop runs over ranks that only keep count (`scheduled_ranks.py`), with the measured steps of small
recorded passes of 8B on one H200. That file says what it leaves out; what it shows is what the schedule costs: packs
that get smaller as they are divided, ranks that wait for each other, and trials that have many steps one after another.
"""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.llama_shapes import decoder_config, gsm8k_rows
from benchmarks.measure import RESULTS
from benchmarks.several_gpus.part import Part
from benchmarks.several_gpus.scheduled_ranks import ScheduledRanks
from benchmarks.several_gpus.sweep import CURVES
from benchmarks.sweeps.replayed_run import train_all
from benchmarks.sweeps.replayed_sweep import Curves
from benchmarks.sweeps.sweep_grid import plan_grid
from benchmarks.sweeps.sweep_price import RECORDED_EXITS, _evaluation_plan
from cohort.models.counts import count_model
from cohort.ranks.step_window import window_steps
from cohort.scheduling.admission import Capacity

__all__ = ["QUESTION", "measure"]

QUESTION = "What would the sweep of 60 trials take on several GPUs, by its schedule?"
STEPS = "small_passes_8b"
# of the whole model, which was measured
NUM_LAYERS = 32
TOKEN_BUDGET = 4096


def measure(options: argparse.Namespace) -> Part:
    num_layers = options.num_layers or NUM_LAYERS
    config = decoder_config("8b", num_layers=num_layers)
    rows = gsm8k_rows(8 if options.tiny else 160, vocab_size=config.vocab_size)
    validation = gsm8k_rows(128, vocab_size=config.vocab_size, seed=1)
    planned = plan_grid(len(rows))[:: 5 if options.tiny else 1]
    evaluation = _evaluation_plan(planned, rows=rows, validation=validation)
    tokens, seconds = _measured_steps()

    def pass_seconds(count: int) -> float:
        # on a line beyond the sizes that were measured
        ends = slice(0, 2) if count < tokens[0] else slice(-2, None)
        if tokens[0] <= count <= tokens[-1]:
            found = float(np.interp(count, tokens, seconds))
        else:
            slope, constant = np.polyfit(tokens[ends], seconds[ends], 1)
            found = float(slope * count + constant)
        return found * num_layers / NUM_LAYERS

    flops = 3 * 2 * count_model(config).linear_flops_per_token * 60 * float(rows.lengths.mean())
    found: list[dict[str, Any]] = []
    curves = Curves(CURVES)
    for num_ranks in (1, 2, 4, 8):
        executor: Any = ScheduledRanks(
            curves, rows, num_ranks=num_ranks, token_budget=TOKEN_BUDGET, pass_seconds=pass_seconds
        )
        room = Capacity(rank_rows=1 << 20, num_slots=60, tokens_per_step=TOKEN_BUDGET, num_ranks=num_ranks)
        sizes: Any = SimpleNamespace(capacity=room, device_state_bytes=1 << 40)
        trained = train_all(
            executor,
            planned,
            train_rows=rows,
            curves=curves,
            early_exit=RECORDED_EXITS,
            sizes=sizes,
            validation=validation,
            num_evaluation_rows=evaluation.num_rows,
            host_memory_bytes=1 << 30,
            window_steps=window_steps(num_ranks=num_ranks, device_type="cuda", flops_per_step=flops / num_ranks),
        )
        found.append(
            {
                "gpus": num_ranks,
                "seconds": executor.seconds,
                "evaluation_seconds": executor.evaluation_seconds,
                "waits": 1 - sum(executor.busy) / num_ranks / executor.seconds,
                "windows": executor.num_windows,
                "trained_tokens": executor.trained_tokens,
                "evaluated_tokens": executor.evaluated_tokens,
                "saved_share": trained.saved_share,
                "times_one": (found[0]["seconds"] if found else executor.seconds) / executor.seconds,
            }
        )
    headline = {f"sweep_8b_{row['gpus']}gpu_times_one_gpu_simulated": row["times_one"] for row in found[1:]}
    notes = {"layers": num_layers, "steps_of": STEPS, "token_budget": TOKEN_BUDGET, "rows": len(rows)}
    columns = ("gpus", "seconds", "evaluation_seconds", "waits", "windows", "times_one")
    return Part(headline=headline, rows=found, columns=columns, notes=notes)


def _measured_steps() -> tuple[list[int], list[float]]:
    """Return tokens and seconds of recorded steps, ascending."""
    rows = json.loads((RESULTS / f"{STEPS}.json").read_text(encoding="utf-8"))["rows"]
    best = {row["tokens"]: row["step_ms"] / 1e3 for row in rows if row["finer"] == 1}
    return sorted(best), [best[tokens] for tokens in sorted(best)]
