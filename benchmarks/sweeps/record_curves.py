"""Loss curves of whole grids on a pretrained model and real data, without early exit: what exits are replayed from.

Every trial trains to its end in one pack, by the product's own executor. It is evaluated where the product evaluates
it, and at further steps, so that other lengths of warm-up can be tried on the same curves. Each (set, seed) is one
file; one that is there already is left alone, so an interrupted recording goes on with the same command. A seed
decides initial weights, order of rows and validation rows.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import machine, started_as, versions
from benchmarks.sweeps.study_data import EVALUATION_ROWS, STUDIED, read_rows, validation_rows
from benchmarks.sweeps.sweep_grid import BATCH_SIZES, LEARNING_RATES, RANKS, PlannedGridTrial, plan_grid
from cohort.data.tokenised import TokenisedRows
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.schedules import Schedule
from cohort.training.trial import TrialSpec
from cohort.tuning import EvaluationSettings, plan_candidate
from cohort.tuning.share_counts import ceil_share
from cohort.tuning.trajectory import Trajectory

__all__ = [
    "CURVES",
    "Recording",
    "add_grid_arguments",
    "add_model_arguments",
    "build_executor",
    "in_processes",
    "plan",
    "record",
    "scale_of",
]

CURVES = Path(__file__).parent / "curves"
# lengths of warm-up, in shares of training, whose evaluations are recorded in addition to the default's
WARMUPS = (0.025, 0.03, 0.05, 0.075, 0.1)
# where ranks are compared with the final ones (ALTO Figure 16 looks at the first of these shares)
EARLY_SHARES = (0.01, 0.02)


@dataclass(kw_only=True)
class Recording:
    """What all trials measured: train loss of each step, validation loss by evaluation step, and what it took.

    ``row_losses`` are the sums over the tokens of each validation row, where they are kept.
    """

    losses: dict[int, list[float]] = field(default_factory=dict)
    validations: dict[int, dict[int, float]] = field(default_factory=dict)
    row_losses: dict[int, dict[int, list[float]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"training": 0.0, "evaluation": 0.0})
    steps: int = 0
    trained_tokens: int = 0
    evaluated_tokens: int = 0

    def points(self, trial_id: int) -> list[list[float]]:
        """Return [step, smoothed train loss, validation loss] of each evaluation; six digits are kept."""
        trajectory, found = Trajectory(), []
        for step, loss in enumerate(self.losses[trial_id], start=1):
            trajectory.add_step(loss)
            if step in self.validations[trial_id]:
                assert trajectory.ema is not None, "a step was added"
                found.append([step, _digits(trajectory.ema), _digits(self.validations[trial_id][step])])
        return found

    def best(self, trial_id: int) -> float:
        """Return the lowest finite validation loss of a trial, infinity if there is none."""
        return min((loss for loss in self.validations[trial_id].values() if math.isfinite(loss)), default=math.inf)


def recorded_steps(trial: PlannedGridTrial) -> frozenset[int]:
    """Return the steps after which a trial is evaluated: those of every warm-up in ``WARMUPS``, and early ones."""
    planned = trial.candidate.planned_steps
    steps = set(trial.candidate.evaluation_steps) | {ceil_share(share, planned) for share in EARLY_SHARES}
    for warmup in WARMUPS:
        variant = plan_candidate(0, planned_steps=planned, warmup_fraction=warmup, settings=EvaluationSettings())
        steps |= set(variant.evaluation_steps)
    return frozenset(steps)


def build_executor(
    arguments: argparse.Namespace, specs: Sequence[TrialSpec], train: TokenisedRows, *, num_slots: int | None = None
) -> Executor:
    """Return an executor with room for all of ``specs`` at once, or for ``num_slots`` of the largest."""
    decoder = load_decoder(arguments.model, dtype=arguments.dtype, device=torch.device(arguments.device))
    ranks = sorted((spec.adapter.r for spec in specs), reverse=True)[:num_slots]
    return Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=train,
        settings=ExecutorSettings(
            num_slots=len(ranks),
            num_rank_rows=sum(ranks),
            token_budget=arguments.token_budget,
            evaluation_token_budget=2 * arguments.token_budget,
            graph_tokens=arguments.graph_tokens,
        ),
        device=arguments.device,
        compute_dtype=decoder.dtype,
    )


def record(
    executor: Executor,
    planned: Sequence[PlannedGridTrial],
    validation: TokenisedRows,
    *,
    name: str = "",
    keep_rows_at: Sequence[float] = (),
) -> Recording:
    """Train all trials to their end and return what they measured, each row's loss at some shares of the training."""
    found = Recording()
    evaluated_at = {}
    for trial in planned:
        executor.load(trial.spec)
        found.losses[trial.spec.trial_id], found.validations[trial.spec.trial_id] = [], {}
        found.row_losses[trial.spec.trial_id] = {}
        evaluated_at[trial.spec.trial_id] = recorded_steps(trial)
    last = {trial.spec.trial_id: trial.candidate.planned_steps for trial in planned}
    rows_at = {trial_id: {ceil_share(share, steps) for share in keep_rows_at} for trial_id, steps in last.items()}
    begun = time.perf_counter()
    while executor.resident:
        step_begun = time.perf_counter()
        events = executor.step()
        found.seconds["training"] += time.perf_counter() - step_begun
        found.steps += 1
        for event in events:
            found.losses[event.trial_id].append(event.loss)
            found.trained_tokens += event.num_tokens
        due = {event.trial_id: event.step for event in events if event.step in evaluated_at[event.trial_id]}
        if due:
            evaluation_begun = time.perf_counter()
            for trial_id, outcome in executor.evaluate(
                tuple(due), rows=validation, row_ids=range(len(validation))
            ).items():
                found.validations[trial_id][due[trial_id]] = outcome.loss
                if due[trial_id] in rows_at[trial_id]:
                    found.row_losses[trial_id][due[trial_id]] = [_digits(term) for term in outcome.terms]
                found.evaluated_tokens += outcome.num_tokens
            found.seconds["evaluation"] += time.perf_counter() - evaluation_begun
        for trial_id, step in due.items():
            if step == last[trial_id]:
                executor.drop(trial_id)
        if found.steps % 200 == 0:
            gone = time.perf_counter() - begun
            share = found.steps / max(last.values())
            print(
                f"{name} {found.steps} steps, {gone:.0f} s, {len(executor.resident)} trials ({share:.0%})", flush=True
            )
    return found


def _digits(value: float) -> float:
    return float(f"{value:.6g}") if math.isfinite(value) else value


def scale_of(arguments: argparse.Namespace) -> tuple[float, str]:
    """Return what the grid's learning rates are multiplied by, and how that was chosen."""
    if arguments.range is None:
        return arguments.learning_rate_scale, "given"
    found = json.loads(arguments.range.read_text(encoding="utf-8"))
    return float(found["scale"]), found["how"]


def content_of(
    arguments: argparse.Namespace, planned: Sequence[PlannedGridTrial], found: Recording, **facts: Any
) -> dict[str, Any]:
    """Return what a file of curves holds."""
    scale, how = scale_of(arguments)
    bests = sorted(found.best(trial.spec.trial_id) for trial in planned)
    return {
        "what": "[step, smoothed train loss (EMA 0.1), validation loss] of each trial at each evaluation, no exits",
        "model": arguments.name,
        "epochs": arguments.epochs,
        "precision": f"{arguments.dtype} base, float32 adapters",
        "learning_rate_scale": scale,
        "learning_rate_scale_chosen": how,
        "schedule": arguments.schedule,
        **facts,
        "seconds": found.seconds,
        "steps": found.steps,
        "trained_tokens": found.trained_tokens,
        "evaluated_tokens": found.evaluated_tokens,
        "machine": machine(),
        "versions": versions(),
        "summary": {
            "best_validation_loss": bests[0],
            "median_validation_loss": bests[len(bests) // 2],
            "worst_validation_loss": bests[-1],
        },
        "trials": [
            {
                "trial_id": trial.spec.trial_id,
                "learning_rate": trial.learning_rate,
                "r": trial.spec.adapter.r,
                "batch_size": trial.spec.batch_size,
                "planned_steps": trial.candidate.planned_steps,
                "warmup_steps": trial.candidate.warmup_steps,
                "points": found.points(trial.spec.trial_id),
                **({"row_losses": rows} if (rows := found.row_losses[trial.spec.trial_id]) else {}),
            }
            for trial in planned
        ],
    }


def plan(arguments: argparse.Namespace, *, num_rows: int, seed: int) -> list[PlannedGridTrial]:
    """Return the grid of one seed."""
    return plan_grid(
        num_rows,
        epochs=arguments.epochs,
        learning_rate_scale=scale_of(arguments)[0],
        learning_rates=arguments.learning_rates,
        ranks=arguments.ranks,
        batch_sizes=arguments.batch_sizes,
        settings=EvaluationSettings(),
        schedule=Schedule(arguments.schedule),
        seed=seed,
    )


def record_one(arguments: argparse.Namespace, name: str, *, seed: int, path: Path) -> None:
    """Record one grid and write its file."""
    train = read_rows(arguments.prepared, name, "train", count=arguments.rows)
    validation = validation_rows(arguments.prepared, name, seed=seed, count=arguments.evaluation_rows)
    planned = plan(arguments, num_rows=len(train), seed=seed)
    executor = build_executor(arguments, [trial.spec for trial in planned], train)
    base = executor.evaluate_base(rows=validation, row_ids=range(len(validation)))
    found = record(
        executor, planned, validation, name=path.stem.removesuffix(".json"), keep_rows_at=arguments.keep_rows_at
    )
    content = content_of(
        arguments,
        planned,
        found,
        set=name,
        seed=seed,
        evaluation_rows=len(validation),
        data=f"{STUDIED[name].file}: {len(train)} rows of at most 512 tokens; {len(validation)} others for validation",
        base_validation_loss=base.loss,
        **({"row_tokens": base.divisors} if arguments.keep_rows_at else {}),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    # no time stamp inside, so that equal curves are equal files; renamed into place, so that a file is whole
    partial = path.with_suffix(".part")
    partial.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
    partial.replace(path)
    spread = {**content["summary"], "base": base.loss}
    print(f"wrote {path.name} ({path.stat().st_size} bytes): {spread} {found.seconds}", flush=True)


def in_processes(jobs: Sequence[Sequence[str]], *, processes: int) -> int:
    """Run this script once for each of ``jobs`` with its arguments added, this many at once; return how many failed.

    The host is the limit of a small model, and cores are many.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    waiting, running, failed = list(jobs), [], 0
    while waiting or running:
        while waiting and len(running) < processes:
            # of an option that is given twice the last one counts
            command = [sys.executable, *started_as(), "--processes", "1", *waiting.pop(0)]
            running.append(subprocess.Popen(command, env=environment))
        time.sleep(0.2)
        failed += sum(process.poll() not in (None, 0) for process in running)
        running = [process for process in running if process.poll() is None]
    return failed


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every script of the study about the model and where it runs."""
    parser.add_argument("--model", type=Path, required=True, help="directory of a Hugging Face checkpoint")
    parser.add_argument("--name", default="llama16M", help="what the model is called in file names")
    parser.add_argument("--prepared", type=Path, required=True, help="folder that study_data.py wrote")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=None, help="training rows; all that were prepared by default")
    parser.add_argument("--evaluation-rows", type=int, default=EVALUATION_ROWS, help="of one seed")
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--token-budget", type=int, default=32768 if torch.cuda.is_available() else 2048)
    parser.add_argument("--graph-tokens", type=int, default=3072)


def add_grid_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is trained; fewer values are for trying it out."""
    parser.add_argument("--range", type=Path, default=None, help="what learning_rate_range.py wrote")
    parser.add_argument("--learning-rate-scale", type=float, default=1.0, help="without --range")
    parser.add_argument("--learning-rates", type=float, nargs="+", default=LEARNING_RATES)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=BATCH_SIZES)
    parser.add_argument("--schedule", default="constant", choices=list(Schedule), help="of the learning rate")


def main() -> int:
    """Record what is missing; return 1 if a recording failed."""
    studied = [name for name, entry in STUDIED.items() if entry.role == "studied"]
    parser = argparse.ArgumentParser(description=__doc__)
    add_model_arguments(parser)
    add_grid_arguments(parser)
    parser.add_argument("--sets", nargs="+", default=studied, choices=list(STUDIED))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--processes", type=int, default=1, help="recordings at once")
    parser.add_argument("--label", default=None, help="part of the file names, the model's name by default")
    parser.add_argument("--keep-rows-at", type=float, nargs="*", default=[], help="shares with each row's loss")
    parser.add_argument("--out", type=Path, default=CURVES)
    arguments = parser.parse_args()
    paths = {
        (name, seed): arguments.out / f"{name}_{arguments.label or arguments.name}_seed{seed}.json.gz"
        for name in arguments.sets
        for seed in arguments.seeds
    }
    missing = [job for job, path in paths.items() if not path.exists()]
    if arguments.processes > 1 and len(missing) > 1:
        jobs = [["--sets", name, "--seeds", str(seed)] for name, seed in missing]
        return int(in_processes(jobs, processes=arguments.processes) > 0)
    for name, seed in missing:
        record_one(arguments, name, seed=seed, path=paths[name, seed])
    return 0


if __name__ == "__main__":
    sys.exit(main())
