"""What do two sweeps on one GPU take when they share one executor, against one after the other?

Two tasks of 30 trials each on one base model, with rows and seeds of their own: alone, each ends in a tail of few small
passes, and together the second one's trials fill the first one's tail. Early exit has default settings. The command
line itself is timed, on a model directory: ``cohort run`` with ``--no-share-gpu`` and with what it does by default.
``--without-queue`` times two processes instead that need neither planner nor command line: one tunes the tasks one
after the other, one begins both at once in one session. A first run of both over few rows fills the caches.

The model has random weights; rows have GSM8K's lengths and words drawn by Zipf's law, as in ``whole_sweep``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import SHAPES
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.sweeps.sweep_grid import BATCH_SIZES, LEARNING_RATES, RANKS
from benchmarks.sweeps.sweep_inputs import write_inputs
from benchmarks.sweeps.timed_processes import run_process

__all__ = ["main"]

QUESTION = "What do two sweeps of 30 on one GPU take in one executor, against one after the other?"
NAMES = ("first", "second")
WAYS = ("in turn", "together")
WARM_UP_ROWS = 24


def main() -> None:
    """Measure, print, write; or be the process that trains both tasks in one way."""
    options = _arguments()
    if options.way:
        _train(options.folder, way=options.way, prefix=options.prefix)
        return
    need_gpu(shape=options.shape)
    with tempfile.TemporaryDirectory(prefix="two-sweeps-") as made:
        folder = options.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        pairs = write_inputs(folder, shape=options.shape, num_layers=options.num_layers, num_rows=2 * options.rows)
        _write_tasks(folder, num_rows=options.rows, trials=options.trials)
        # shapes of kernels and recorded passes follow from the trials, so that few rows warm up most of them
        _time(folder, "together", prefix="warm-up-", has_queue=False)
        rows = [_time(folder, way, has_queue=not options.without_queue) for way in WAYS]
    print_table(
        rows, columns=("what", "wall_s", "training_s", "first_s", "second_s", "tokens", "first_best", "second_best")
    )
    by_way = {row["what"]: row for row in rows}
    alone, together = by_way["in turn"], by_way["together"]
    headline = {
        f"two_sweeps_together_{options.shape}": together["wall_s"] / alone["wall_s"],
        # without the start and the end of the queue and its worker
        f"two_sweeps_together_{options.shape}_at_work": together["training_s"] / alone["training_s"],
    }
    out = options.out or RESULTS / f"two_sweeps_together_{options.shape}.json"
    notes = {"rows_each": options.rows, "trials_each": options.trials, "tokens": sum(map(sum, pairs))}
    write_result(out, question=QUESTION, headline=headline, rows=rows, notes=notes)
    print({key: round(value, 3) for key, value in headline.items()})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1b")
    parser.add_argument("--num-layers", type=int, default=None, help="fewer layers, to try it out")
    parser.add_argument("--rows", type=int, default=160, help="training rows of each task")
    parser.add_argument("--trials", type=int, default=30, help="trials of each task")
    parser.add_argument("--folder", type=Path, default=None, help="keep model, rows and runs here")
    parser.add_argument("--without-queue", action="store_true", help="time processes that call the engine")
    parser.add_argument("--way", choices=WAYS, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--prefix", default="", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def _write_tasks(folder: Path, *, num_rows: int, trials: int) -> None:
    """Write two tasks, each with its half of the rows, and the same with few rows for the warm-up."""
    lines = (folder / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for index, name in enumerate(NAMES):
        own = lines[index * num_rows : (index + 1) * num_rows]
        for prefix, kept in (("", own), ("warm-up-", own[:WARM_UP_ROWS])):
            (folder / f"{prefix}{name}.jsonl").write_text("".join(kept), encoding="utf-8")
            space = {"learning_rate": LEARNING_RATES, "r": RANKS, "lora_alpha": "2r", "batch_size": BATCH_SIZES}
            task = {
                "model_name_or_path": "model",
                "dataset": {
                    "train": f"{prefix}{name}.jsonl",
                    "validation": "validation.jsonl",
                    "format": "prompt_completion",
                },
                "training": {"num_train_epochs": 1, "seed": index},
                "search": {"sampler": "random", "trials": trials, "space": space},
            }
            (folder / f"{prefix}{name}.yaml").write_text(json.dumps(task, indent=1), encoding="utf-8")


def _train(folder: Path, *, way: str, prefix: str) -> None:
    """Train both tasks without a queue; ``prefix`` of their files."""
    from cohort.engine.session import Session
    from cohort.engine.tune import tune
    from cohort.tasks.loading import load_task

    runs = folder / f"{prefix}{way.replace(' ', '-')}"
    began, session = time.perf_counter(), Session()
    for name in NAMES:
        task = load_task(folder / f"{prefix}{name}.yaml")
        if way == "together":
            session.submit(task, runs / name, name=name)
        else:
            tune(task, runs / name)
    session.run()
    print(json.dumps({"training_s": time.perf_counter() - began}))


def _time(folder: Path, way: str, *, has_queue: bool, prefix: str = "") -> dict[str, Any]:
    runs = folder / f"{prefix}{way.replace(' ', '-')}"
    if has_queue:
        command = ["-m", "cohort", "run", *(str(folder / f"{name}.yaml") for name in NAMES), "-o", str(runs), "--json"]
        command += ["--gpus", "1"] if torch.cuda.is_available() else ["--workers", "1"]
        command += ["--no-share-gpu"] if way == "in turn" else []
    else:
        command = ["-m", "benchmarks.sweeps.two_sweeps_together", "--folder", str(folder), "--way", way]
        command += ["--prefix", prefix] if prefix else []
    wall, output = run_process(command, folder, caches=folder / "caches")
    found = {} if has_queue else json.loads(output.splitlines()[-1])
    row = {"what": f"{prefix}{way}", "wall_s": wall, **found, **_outcome(runs)}
    print(row, flush=True)
    return row


def _outcome(runs: Path) -> dict[str, Any]:
    """Return what each task came to, and how long both trained and shared the GPU."""
    from cohort.runs.reader import RunReader
    from cohort.runs.results.results import read_results

    found: dict[str, Any] = {"tokens": 0}
    for name in NAMES:
        with RunReader.open(runs / name / "run.db") as reader:
            results = read_results(reader)
        found[f"{name}_s"] = results.run_seconds
        best = results.best
        found[f"{name}_best"] = None if best is None else [best.trial_id, best.best_value]
        found["tokens"] += results.compute.trained_tokens
    if (runs / "queue.db").exists():
        # planners need libraries that engines do without
        from cohort.task_queue.store import open_queue

        with open_queue(runs) as store:
            spans = {stretch.task: (stretch.start_seconds, stretch.end_seconds or 0.0) for stretch in store.stretches()}
            found["decisions"] = [entry.text for entry in store.decisions() if entry.kind in ("share", "start", "end")]
        starts, ends = zip(*spans.values(), strict=True)
        found |= {"training_s": max(ends) - min(starts), "shared_s": max(0.0, min(ends) - max(starts))}
    return found


if __name__ == "__main__":
    main()
