"""How well are steps of mixed packs predicted that the cost model never saw?

Packs of 1 to 32 adapters, ranks 8 to 64, batch sizes 1 to 8, rows of GSM8K's lengths and rows of four of them joined,
step through the real executor (graphs below 3,072 tokens, micro-batches above the budget). Half of the packs are
fitted, the other half judged, and once more every pack is judged by a fit of four fifths of the packs that it is not
among. A pack's error is that of its timed steps together. Steps that recorded a graph are left out, as are passes below
the graph limit that were not replayed: a run has them once per shape.

python -m benchmarks.planning.cost_model                                        1B and 8B shapes, on a GPU
python -m benchmarks.planning.cost_model --shapes tiny --packs 4 --held-out 4 --seconds 20   a small form for a CPU
python -m benchmarks.planning.cost_model --refit benchmarks/results/cost_model.json    fit recorded steps again
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import decoder_config, gsm8k_rows, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.adapters.bank import aligned_rank
from cohort.adapters.spec import AdapterSpec
from cohort.data.packing import split_micro_batches
from cohort.data.tokenised import TokenisedRows
from cohort.models.decoder import Decoder
from cohort.scheduling.cost.fit import CostFit, fit_step_cost
from cohort.scheduling.cost.model import AdapterWork, LaunchRegime, StepCost, StepSample
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec

QUESTION = "How well are steps of mixed packs predicted that the cost model never saw?"
RANKS = (8, 16, 32, 64)
BATCH_SIZES = (1, 2, 4, 8)
NUM_ADAPTERS = (1, 1, 2, 2, 3, 4, 6, 8, 12, 16, 24, 32)
GRAPH_TOKENS = 3072
KNEES = (512.0, 1024.0, 2048.0, 3072.0, 4096.0, 8192.0)
# (tokens of a micro-batch, most tokens of a pack, most rank rows) by shape
LIMITS = {"8b": (8192, 10_000, 512), "1b": (16384, 18_000, 1024), "tiny": (2048, 3_000, 256)}
# how a shape's share of the time is weighed
WEIGHTS = {"8b": 2.0, "1b": 1.0, "tiny": 1.0}
TIMED_STEPS = 4
MOST_STEPS = 10
FOLDS = 5


def joined_rows(count: int, *, vocab_size: int, seed: int) -> TokenisedRows:
    """Return rows of four GSM8K rows each."""
    lengths = gsm8k_rows(4 * count, vocab_size=vocab_size, seed=seed).lengths.reshape(count, 4).sum(axis=1)
    return rows_of_lengths([(int(n) // 2, int(n) - int(n) // 2) for n in lengths], vocab_size=vocab_size, seed=seed)


ROWS = {"gsm8k": gsm8k_rows, "joined": joined_rows}
# of the packs; most tasks have short rows
SHARES = {"gsm8k": 2 / 3, "joined": 1 / 3}
NUM_ROWS = 256


def draw_pack(rng: random.Random, *, mean_length: float, most_tokens: int, rank_rows: int) -> list[tuple[int, int]]:
    """Return (rank, batch size) of each adapter."""
    count, limit = rng.choice(NUM_ADAPTERS), rng.uniform(0.05, 1.0) * most_tokens
    pack: list[tuple[int, int]] = []
    rows = tokens = 0.0
    for _ in range(count):
        r, batch_size = rng.choice(RANKS), rng.choice(BATCH_SIZES)
        rows, tokens = rows + aligned_rank(r), tokens + batch_size * mean_length
        if pack and (rows > rank_rows or tokens > limit):
            break
        pack.append((r, batch_size))
    return pack


def build_executor(decoder: Decoder, rows: TokenisedRows, *, shape: str) -> Executor:
    budget, _, rank_rows = LIMITS[shape]
    settings = ExecutorSettings(
        num_slots=max(NUM_ADAPTERS),
        num_rank_rows=rank_rows,
        token_budget=budget,
        evaluation_token_budget=budget,
        graph_tokens=GRAPH_TOKENS if decoder.device.type == "cuda" else 0,
    )
    return Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=settings,
        device=decoder.device,
        compute_dtype=decoder.dtype,
    )


def measure_pack(executor: Executor, pack: Sequence[tuple[int, int]], *, first_step: int) -> list[dict[str, Any]]:
    """Step ``pack`` and return what its timed steps held and took."""
    specs = [
        TrialSpec(
            trial_id=place,
            seed=0,
            adapter=AdapterSpec(r=r, lora_alpha=2.0 * r),
            learning_rate=1e-5,
            batch_size=batch_size,
            num_steps=100_000,
        )
        for place, (r, batch_size) in enumerate(pack)
    ]
    lengths = executor.train_rows.lengths
    for spec in specs:
        executor.load(spec)
    timed: list[dict[str, Any]] = []
    for step in range(MOST_STEPS):
        own = [lengths[spec.order(len(lengths)).batch(step)] for spec in specs]
        passes = split_micro_batches([int(n) for ns in own for n in ns], token_budget=executor.settings.token_budget)
        flat = [int(n) for ns in own for n in ns]
        small = sum(sum(flat[i] for i in run) < GRAPH_TOKENS for run in passes)
        captured = executor.captured
        before = (captured.capture_seconds, captured.num_replays) if captured else (0.0, 0)
        _wait()
        begun = time.perf_counter()
        executor.step()
        _wait()
        seconds = time.perf_counter() - begun
        after = (captured.capture_seconds, captured.num_replays) if captured else (0.0, 0)
        is_steady = after[0] == before[0] and (captured is None or after[1] - before[1] == small)
        if step >= first_step:
            timed.append(
                {
                    "is_steady": is_steady,
                    "tokens": [int(ns.sum()) for ns in own],
                    "squares": [int((ns.astype(float) ** 2).sum()) for ns in own],
                    "passes": len(passes),
                    "seconds": seconds,
                }
            )
        if sum(row["is_steady"] for row in timed) == TIMED_STEPS:
            break
    for spec in specs:
        executor.drop(spec.trial_id)
    return timed


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure_shape(shape: str, *, packs: int, held_out: int, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each pack of a shape, fitted and held-out ones in turn, until the time is over."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = decoder_config(shape)
    decoder = random_decoder(config, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    rng = random.Random(0)
    rows: list[dict[str, Any]] = []
    _, most_tokens, rank_rows = LIMITS[shape]
    executor = build_executor(decoder, gsm8k_rows(NUM_ROWS, vocab_size=config.vocab_size), shape=shape)
    # kernels are compiled and libraries set up
    measure_pack(executor, [(r, 4) for r in RANKS], first_step=MOST_STEPS)
    begun = time.perf_counter()
    for kind, share in SHARES.items():
        end = begun + seconds * (share if kind == "gsm8k" else 1.0)
        for role in _roles(round(packs * share), round(held_out * share)):
            if time.perf_counter() > end:
                print(f"{shape} {kind}: the time is over", flush=True)
                break
            # other rows for each pack; the executor takes them as they come
            train_rows = ROWS[kind](NUM_ROWS, vocab_size=config.vocab_size, seed=len(rows))
            executor.train_rows = train_rows
            mean = float(train_rows.lengths.mean())
            pack = draw_pack(rng, mean_length=mean, most_tokens=most_tokens, rank_rows=rank_rows)
            steps = measure_pack(executor, pack, first_step=1)
            if any(step["is_steady"] for step in steps):
                ranks, batch_sizes = [r for r, _ in pack], [b for _, b in pack]
                rows.append(
                    {"shape": shape, "rows": kind, "role": role, "r": ranks, "batch_size": batch_sizes, "steps": steps}
                )
    return rows


def _roles(packs: int, held_out: int) -> list[str]:
    """Return "fit" and "held out" in turn, so that a time limit cuts both."""
    roles: list[str] = []
    while packs or held_out:
        if packs and (not held_out or roles.count("fit") <= roles.count("held out")):
            roles.append("fit")
            packs -= 1
        else:
            roles.append("held out")
            held_out -= 1
    return roles


def steady_steps(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps that a long run consists of; one that compiled a kernel takes many times the others."""
    steps = [step for step in row["steps"] if step["is_steady"]]
    usual = statistics.median(step["seconds"] for step in steps)
    return [step for step in steps if step["seconds"] <= 3 * usual]


def samples_of(row: dict[str, Any]) -> list[StepSample]:
    """Return a row's timed steps as the cost model takes them."""
    return [
        StepSample(
            pack=tuple(
                AdapterWork(r=aligned_rank(r), num_tokens=tokens, sum_squares=squares, num_sequences=batch_size)
                for r, batch_size, tokens, squares in zip(
                    row["r"], row["batch_size"], step["tokens"], step["squares"], strict=True
                )
            ),
            seconds=step["seconds"],
        )
        for step in steady_steps(row)
    ]


def pack_error(cost: StepCost, row: dict[str, Any]) -> float:
    """Return the signed error of a pack's steps together, in percent."""
    samples = samples_of(row)
    return 100 * (sum(cost.step_seconds(s.pack) for s in samples) / sum(s.seconds for s in samples) - 1)


def fit_shape(shape: str, rows: list[dict[str, Any]], *, on_gpu: bool) -> dict[str, Any]:
    """Fit a shape's packs, write each row's prediction into it, and return the fit and its errors."""
    fitted = [sample for row in rows if row["role"] == "fit" for sample in samples_of(row)]
    judged = [sample for row in rows if row["role"] != "fit" for sample in samples_of(row)]
    regime = LaunchRegime(from_tokens=GRAPH_TOKENS, tokens_per_pass=LIMITS[shape][0]) if on_gpu else None
    fit = fit_step_cost(fitted, held_out=judged, knees=KNEES, launched=regime)
    convex = fit_step_cost(fitted, held_out=judged, knees=KNEES)
    for row in rows:
        row["tokens"] = statistics.fmean(sum(step["tokens"]) for step in steady_steps(row))
        row["ms"] = 1e3 * statistics.fmean(step["seconds"] for step in steady_steps(row))
        row["error_percent"] = pack_error(fit.cost, row)
        row["convex_error_percent"] = pack_error(convex.cost, row)
    cross_validate(rows, launched=regime)
    return {"cost": asdict(fit.cost), "convex": asdict(convex.cost), "steps": _step_errors(fit)}


def cross_validate(rows: list[dict[str, Any]], *, launched: LaunchRegime | None) -> None:
    """Write into each row its error under a fit of the other folds; folds are cut by the order of measuring."""
    for fold in range(min(FOLDS, len(rows))):
        held, others = rows[fold::FOLDS], [row for index, row in enumerate(rows) if index % FOLDS != fold]
        judged = [sample for row in held for sample in samples_of(row)]
        fitted = [sample for row in others for sample in samples_of(row)]
        cost = fit_step_cost(fitted, held_out=judged, knees=KNEES, launched=launched).cost
        for row in held:
            row["cross_error_percent"] = pack_error(cost, row)


def _step_errors(fit: CostFit) -> dict[str, float]:
    return {
        "fit_median_percent": fit.fit_median_error_percent,
        "held_out_median_percent": fit.held_out_median_error_percent,
        "held_out_worst_percent": fit.held_out_worst_error_percent,
        "num_fitted": fit.num_fitted,
        "num_held_out": fit.num_held_out,
    }


def headline_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the errors on packs that a fit has not seen, all shapes together and each."""
    held = [row for row in rows if row["role"] != "fit"]
    found = {
        "cost_model_median_error_percent": statistics.median(abs(row["cross_error_percent"]) for row in rows),
        "cost_model_worst_error_percent": max(abs(row["cross_error_percent"]) for row in rows),
        "cost_model_held_out_packs": float(len(rows)),
        "cost_model_half_fitted_median_error_percent": statistics.median(abs(row["error_percent"]) for row in held),
        "cost_model_convex_median_error_percent": statistics.median(abs(row["convex_error_percent"]) for row in held),
    }
    for shape in dict.fromkeys(row["shape"] for row in rows):
        own = [abs(row["cross_error_percent"]) for row in rows if row["shape"] == shape]
        found[f"cost_model_median_error_percent_{shape}"] = statistics.median(own)
    return found


def report(rows: list[dict[str, Any]], *, on_gpu: bool) -> dict[str, Any]:
    """Fit every shape and print the packs; return the fits by shape."""
    shapes = dict.fromkeys(row["shape"] for row in rows)
    fits = {s: fit_shape(s, [row for row in rows if row["shape"] == s], on_gpu=on_gpu) for s in shapes}
    shown = [{**row, "adapters": len(row["r"]), "rank_rows": sum(row["r"])} for row in rows]
    columns = ("shape", "rows", "role", "adapters", "rank_rows", "tokens", "ms", "error_percent", "cross_error_percent")
    print_table(shown, columns=(*columns, "convex_error_percent"))
    return fits


def main() -> None:
    """Measure or read, fit, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=sorted(LIMITS), default=["1b", "8b"])
    parser.add_argument("--packs", type=int, default=26, help="fitted packs of a shape")
    parser.add_argument("--held-out", type=int, default=32, help="held-out packs of a shape")
    parser.add_argument("--seconds", type=float, default=140, help="most seconds of measuring, setting up aside")
    parser.add_argument("--refit", type=Path, help="a result file whose steps to fit again, with nothing measured")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    if options.refit is not None:
        recorded = json.loads(options.refit.read_text(encoding="utf-8"))
        fits = report(recorded["rows"], on_gpu="gpu" in recorded["machine"])
        recorded |= {"headline": headline_of(recorded["rows"])}
        recorded["notes"]["fits"] = fits
        options.refit.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
        print(recorded["headline"])
        return
    need_gpu(shape="tiny" if options.shapes == ["tiny"] else options.shapes[0])
    named = "" if options.shapes == ["1b", "8b"] else f"_{'_'.join(options.shapes)}"
    path = options.out or RESULTS / f"cost_model{named}.json"
    rows: list[dict[str, Any]] = []
    total = sum(WEIGHTS[shape] for shape in options.shapes)
    for shape in options.shapes:
        seconds = options.seconds * WEIGHTS[shape] / total
        rows += measure_shape(shape, packs=options.packs, held_out=options.held_out, seconds=seconds)
        # what is there so far is written, in case the next shape does not end
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        fits = report(rows, on_gpu=torch.cuda.is_available())
        notes = {"fits": fits, "graph_tokens": GRAPH_TOKENS, "limits": {s: LIMITS[s] for s in options.shapes}}
        write_result(path, question=QUESTION, headline=headline_of(rows), rows=rows, notes=notes)
    print(headline_of(rows))


if __name__ == "__main__":
    main()
