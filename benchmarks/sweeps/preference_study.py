"""Does early exit find the same reward accuracy? A DPO sweep on real pairs, with and without it.

The base model is stories260K, the pairs are BLiMP's minimal pairs of a grammatical and an ungrammatical sentence. Both
sweeps have the same trials, rows and seeds; the finalists of each are compared on all validation pairs, and the
winner's accuracy there counts. The cache is empty before the first sweep: its reference is computed once for all
trials, and the others find it there.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.measure import RESULTS, print_table, write_result
from cohort.engine.train.watching.progress import SilentWatcher
from cohort.engine.tune import tune
from cohort.runs.results.task_result import read_task_result
from cohort.tasks.loading import task_from_mapping

QUESTION = (
    "Which reward accuracy does a DPO sweep reach with and without early exit, and at what share of the training?"
)
SPACES: dict[int, dict[str, Any]] = {
    12: {"learning_rate": [1e-3, 3e-3, 1e-2], "beta": [0.1, 0.5], "r": [4, 16], "lora_alpha": "2r"},
    40: {
        "learning_rate": [3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
        "beta": [0.03, 0.1, 0.3, 0.5],
        "r": [4, 16],
        "lora_alpha": "2r",
    },
}


ACCURACY = "reward_accuracy"


class _Notes(SilentWatcher):
    """Keeps what a run says of its reference."""

    def __init__(self) -> None:
        self.reference: list[str] = []

    def note(self, text: str) -> None:
        if text.startswith("reference log-probabilities"):
            self.reference.append(text)


def swept(options: argparse.Namespace, folder: Path, *, early_exit: dict[str, Any] | str, seed: int) -> dict[str, Any]:
    """Run one sweep; return its winner and what it cost."""
    data = {
        "model_name_or_path": str(options.shared / "models" / "stories260K" / "hf"),
        "dataset": {
            "train": str(options.shared / "data" / "preference" / "blimp_pairs.jsonl"),
            "validation": 0.1,
            "max_train_samples": options.pairs,
        },
        "search": {"space": SPACES[options.configurations]},
        "objective": "dpo",
        "lora": {"target_modules": "all-linear"},
        "training": {"max_steps": options.steps, "batch_size": 8, "lr_scheduler_type": "linear", "seed": seed},
        "evaluation": {
            "metric": ACCURACY,
            "max_examples": 200,
            "max_cost_fraction": 0.5,
            "finalists": 3,
            # all pairs: the accuracies are what the study is about
            "finalists_cost_fraction": 1000.0,
        },
        "early_exit": early_exit,
        "num_gpus": 1 if options.gpu else 0,
    }
    begun, watcher = time.perf_counter(), _Notes()
    tune(task_from_mapping(data, base_directory=folder.parent), folder, watcher=watcher)
    # not cohort.load: the package as a whole needs ortools, which a GPU machine may lack
    seconds, result = time.perf_counter() - begun, read_task_result(folder)
    best = result.best_trial or {}
    return {
        "early_exit": early_exit if isinstance(early_exit, str) else "patterns",
        "seed": seed,
        "seconds": seconds,
        "best_trial": {"trial": best.get("trial"), **best.get("parameters", {})},
        "pairs_compared": best.get("final_rows"),
        **{name: best.get("final", {}).get(name) for name in (ACCURACY, f"{ACCURACY}_low", f"{ACCURACY}_high", "loss")},
        "trained_tokens": sum(int(trial["tokens"]) for trial in result.trials),
        "reference": watcher.reference,
    }


def main() -> None:
    """Sweep twice, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=Path, help="folder with data/ and models/ (see THIRD_PARTY_NOTICES.md)")
    parser.add_argument("--configurations", type=int, choices=sorted(SPACES), default=12)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=480, help="training pairs")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--gpu", action="store_true", help="train on the GPU")
    parser.add_argument("--out", type=Path, default=RESULTS / "preference_study.json")
    options = parser.parse_args()
    options.shared = options.shared.resolve()
    rows = []
    with tempfile.TemporaryDirectory(prefix="preference-study-") as made:
        os.environ["COHORT_CACHE_DIR"] = str(Path(made) / "cache")
        for seed in range(options.seeds):
            for name, early_exit in (("none", "none"), ("patterns", {"rule": "patterns"})):
                rows.append(swept(options, Path(made) / f"{name}-{seed}", early_exit=early_exit, seed=seed))
                print(rows[-1], flush=True)
            # after every pair of sweeps: what is cut off keeps those it has
            write(options, rows)
    print_table(rows, columns=["early_exit", "seed", ACCURACY, "trained_tokens", "seconds"])


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Write the result file of the sweeps so far: means over seeds."""
    of = {kind: [row for row in rows if row["early_exit"] == kind] for kind in ("none", "patterns")}
    headline = {f"preference_accuracy_{kind}": mean(row[ACCURACY] for row in own) for kind, own in of.items()}
    tokens = {kind: sum(row["trained_tokens"] for row in own) for kind, own in of.items()}
    headline["preference_trained_share"] = tokens["patterns"] / tokens["none"]
    notes = {"configurations": options.configurations, "steps": options.steps, "pairs": options.pairs}
    write_result(options.out, question=QUESTION, headline=headline, rows=rows, notes=notes)


if __name__ == "__main__":
    main()
