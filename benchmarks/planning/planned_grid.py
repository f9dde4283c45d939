"""What does a full grid take on two CPU workers by plan and by refilled slots, and does it end when the plan says?

The quickstart's 24 configurations train to their end, a part of an epoch, on two processes of one machine: by PLoRA's
plan and by slots that refill, in turn. Both give the same adapters, bit for bit, which is checked. The makespan is the
time from the first trial in a slot to the last one out of it; next to it stand the prediction and the seconds that the
processes themselves took for training. On a machine with other work the seconds say little, which the load average
tells.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from cohort.engine.tune import RunOptions, tune
from cohort.runs.reader import RunReader
from cohort.tasks.loading import load_task

QUESTION = "What does a full grid take on two CPU workers by plan and by refilled slots?"


def run(packing: str, directory: Path, *, epochs: float) -> dict[str, Any]:
    overrides = [
        "--early_exit", "none", "--packing", packing, "--training.num_train_epochs", str(epochs),
        "--evaluation.finalists", "0", "--num_gpus", "0",
    ]  # fmt: skip
    task = load_task(REPOSITORY / "examples" / "quickstart" / "task.yaml", overrides)
    tune(task, directory, options=RunOptions(num_ranks=2))
    digest = hashlib.sha256()
    for path in sorted(directory.glob("**/adapter_model.safetensors")):
        digest.update(path.read_bytes())
    with RunReader.open(directory / "run.db") as reader:
        stays, work = reader.log.residencies(), reader.log.rank_work()
        chosen = (reader.facts().packing_chosen or (None,))[0]
    trained = Counter[int]()
    for record in work:
        trained[record.rank] += record.train_seconds + record.evaluate_seconds
    began, ended = min(stay.start_seconds for stay in stays), max(stay.stop_seconds or 0.0 for stay in stays)
    return {
        "packing": packing,
        "makespan_seconds": ended - began,
        "predicted_seconds": None if chosen is None else chosen.planned_seconds,
        "refill_predicted_seconds": None if chosen is None else chosen.refill_seconds,
        "packs": 0 if chosen is None else len(chosen.packs),
        "placed_again": 0 if chosen is None else chosen.num_changes,
        "busiest_process_seconds": max(trained.values()),
        "least_busy_process_seconds": min(trained.values()),
        "adapters": digest.hexdigest()[:16],
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=float, default=0.05)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "planned_grid.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.times):
            for packing in ("planned", "refill"):
                rows.append(run(packing, Path(folder) / f"{packing}-{number}", epochs=arguments.epochs))
    print_table(rows, columns=list(rows[0]))
    assert len({row["adapters"] for row in rows}) == 1, "plan and refill give the same adapters"
    least = {
        name: min(row["makespan_seconds"] for row in rows if row["packing"] == name) for name in ("planned", "refill")
    }
    planned = [row for row in rows if row["packing"] == "planned"]
    headline = {
        "planned_seconds": least["planned"],
        "refill_seconds": least["refill"],
        "planned_over_refill_on_cpus": least["planned"] / least["refill"],
        "planned_over_predicted": least["planned"] / planned[0]["predicted_seconds"],
        "adapters_are_the_same": 1.0,
    }
    write_result(arguments.out, question=QUESTION, headline=headline, rows=rows, notes={"epochs": arguments.epochs})


if __name__ == "__main__":
    main()
