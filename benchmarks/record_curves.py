"""Loss curves of a whole grid on a real model and real data, without early exit: what exits are replayed from.

Every trial trains to its end in packs, by the engine's own executor, and is evaluated at the steps the product would
evaluate it at. The model is small, so the grid's learning rates are multiplied by ``--learning-rate-scale``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from measure import machine, versions
from sweep_grid import PlannedGridTrial, plan_grid

from cohort.data.loading import load_dataset
from cohort.data.settings import DatasetSettings
from cohort.data.tokenised import TokenisedRows
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor, ExecutorSettings
from cohort.tuning import EarlyExitSettings, EvaluationSettings, RecordedCurve, replay_curves
from cohort.tuning.trajectory import Trajectory

CURVES = Path(__file__).parent / "curves"


def load_rows(arguments: argparse.Namespace) -> tuple[TokenisedRows, TokenisedRows]:
    """Return training and validation rows of GSM8K's training split that fit the model's context."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(arguments.model))
    settings = DatasetSettings(
        train=arguments.data,
        validation=0.2,
        columns={"prompt": "question", "completion": "answer"},
        prompt_template="Question: {question}\nAnswer:\n",
        max_length=512,
    )
    data = load_dataset(settings, tokenizer=tokenizer, use_cache=False)
    return _first(data.train, arguments.rows), _first(data.validation, arguments.evaluation_rows)


def _first(rows: TokenisedRows, count: int) -> TokenisedRows:
    """Return the first ``count`` rows; the loader has shuffled nothing, the file itself is in no order."""
    count = min(count, len(rows))
    stop = rows.offsets[count]
    return TokenisedRows(
        tokens_T=rows.tokens_T[:stop],
        trained_T=rows.trained_T[:stop],
        offsets=rows.offsets[: count + 1],
        prompts=rows.prompts[:count],
        references=rows.references[:count],
        sources=rows.sources[:count],
        fingerprint=f"{rows.fingerprint} first {count}",
    )


def record(
    executor: Executor, planned: Sequence[PlannedGridTrial], validation: TokenisedRows
) -> tuple[dict[int, list[float]], dict[int, dict[int, float]]]:
    """Train all trials to their end; return train losses by step and validation losses by evaluation step."""
    losses: dict[int, list[float]] = {trial.spec.trial_id: [] for trial in planned}
    validations: dict[int, dict[int, float]] = {trial.spec.trial_id: {} for trial in planned}
    candidates = {trial.spec.trial_id: trial.candidate for trial in planned}
    waiting = list(planned)
    begun, ticks = time.perf_counter(), 0
    while waiting or executor.resident:
        ticks += 1
        if ticks % 50 == 0:
            print(f"{ticks} steps, {time.perf_counter() - begun:.0f} s, {len(executor.resident)} trials", flush=True)
        while waiting and executor.fits(waiting[0].spec):
            executor.load(waiting.pop(0).spec)
        done = {}
        for event in executor.step():
            losses[event.trial_id].append(event.loss)
            done[event.trial_id] = event.step
        due = [trial_id for trial_id, step in done.items() if step in candidates[trial_id].evaluation_steps]
        if due:
            found = executor.evaluate(due, rows=validation, row_ids=range(len(validation)))
            for trial_id, outcome in found.items():
                validations[trial_id][done[trial_id]] = outcome.loss
        for trial_id in due:
            if done[trial_id] == candidates[trial_id].planned_steps:
                executor.drop(trial_id)
    return losses, validations


def summary(
    planned: Sequence[PlannedGridTrial],
    losses: dict[int, list[float]],
    validations: dict[int, dict[int, float]],
) -> dict[str, Any]:
    """Return what early exit with default settings would have saved, and the spread of best losses."""
    curves = [
        RecordedCurve(
            candidate=trial.candidate,
            train_losses=losses[trial.spec.trial_id],
            validation_losses=validations[trial.spec.trial_id],
            batch_size=trial.spec.batch_size,
        )
        for trial in planned
    ]
    bests = sorted(min(points.values()) for points in validations.values())
    report = replay_curves(curves, EarlyExitSettings())
    assert report.best is not None, "a recorded grid has finite losses"
    return {
        "best_validation_loss": bests[0],
        "median_validation_loss": bests[len(bests) // 2],
        "worst_validation_loss": bests[-1],
        "samples_saved_percent": 100 * report.saved_share,
        "best_with_early_exit": report.best.value,
        "best_loss_ratio": report.best.value / bests[0],
        "samples_saved_by": {reason.value: saved for reason, saved in report.samples_saved_by.items()},
    }


def _points(losses: Sequence[float], validations: dict[int, float]) -> list[list[float]]:
    """Return [step, smoothed train loss, validation loss] of each evaluation; six digits are kept."""
    trajectory, found = Trajectory(), []
    for step, loss in enumerate(losses, start=1):
        trajectory.add_step(loss)
        if step in validations:
            assert trajectory.ema is not None, "a step was added"
            found.append([step, _digits(trajectory.ema), _digits(validations[step])])
    return found


def _digits(value: float) -> float:
    return float(f"{value:.6g}") if math.isfinite(value) else value


def _trial_json(
    trial: PlannedGridTrial, losses: Mapping[int, Sequence[float]], validations: Mapping[int, dict[int, float]]
) -> dict[str, Any]:
    return {
        "trial_id": trial.spec.trial_id,
        "learning_rate": trial.learning_rate,
        "r": trial.spec.adapter.r,
        "batch_size": trial.spec.batch_size,
        "planned_steps": trial.candidate.planned_steps,
        "warmup_steps": trial.candidate.warmup_steps,
        "points": _points(losses[trial.spec.trial_id], validations[trial.spec.trial_id]),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="directory of a Hugging Face checkpoint")
    parser.add_argument("--name", default="stories260K")
    parser.add_argument("--data", type=Path, required=True, help="GSM8K's training split as JSON lines")
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--evaluation-rows", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--learning-rate-scale", type=float, default=20.0)
    parser.add_argument("--learning-rates", type=float, nargs="+", default=None)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=None, help="fewer trials, to try it out")
    parser.add_argument("--ranks", type=int, nargs="+", default=None, help="fewer trials, to try it out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--token-budget", type=int, default=None)
    parser.add_argument("--out", type=Path, default=CURVES)
    return parser.parse_args()


def main() -> None:
    """Record, print a summary, write the curves."""
    arguments = _arguments()
    train, validation = load_rows(arguments)
    given = {} if arguments.learning_rates is None else {"learning_rates": arguments.learning_rates}
    planned = plan_grid(
        len(train),
        epochs=arguments.epochs,
        learning_rate_scale=arguments.learning_rate_scale,
        settings=EvaluationSettings(),
        **given,
    )
    planned = [
        trial
        for trial in planned
        if (arguments.batch_sizes is None or trial.spec.batch_size in arguments.batch_sizes)
        and (arguments.ranks is None or trial.spec.adapter.r in arguments.ranks)
    ]
    decoder = load_decoder(arguments.model, dtype=arguments.dtype, device=torch.device(arguments.device))
    budget = arguments.token_budget or (32768 if arguments.device == "cuda" else 4096)
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=train,
        settings=ExecutorSettings(
            num_slots=len(planned),
            num_rank_rows=sum(trial.spec.adapter.r for trial in planned),
            token_budget=budget,
            evaluation_token_budget=2 * budget,
        ),
        device=arguments.device,
        compute_dtype=decoder.dtype,
    )
    begun = time.perf_counter()
    losses, validations = record(executor, planned, validation)
    seconds = time.perf_counter() - begun
    found = summary(planned, losses, validations)
    print(json.dumps({**found, "seconds": seconds}, indent=1), flush=True)
    content = {
        "what": "[step, smoothed train loss (EMA 0.1), validation loss] of each trial at each evaluation, no exits",
        "model": arguments.name,
        "data": f"GSM8K training split, {len(train)} rows of at most 512 tokens; validation {len(validation)} others",
        "epochs": arguments.epochs,
        "precision": f"{arguments.dtype} base, float32 adapters",
        "learning_rate_scale": arguments.learning_rate_scale,
        "why_scaled": "the grid's rates suit models of billions of weights; one of 260 thousand hardly moves at them",
        "seconds": seconds,
        "machine": machine(),
        "versions": versions(),
        "summary": found,
        "trials": [_trial_json(trial, losses, validations) for trial in planned],
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"gsm8k_{arguments.name}.json.gz"
    # no time stamp inside, so that equal curves are equal files
    path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
    print(f"wrote {path}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
