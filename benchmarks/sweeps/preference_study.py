"""Does early exit find the same reward accuracy? A DPO sweep on real pairs, with and without it.

The base model is stories260K, the pairs are BLiMP's minimal pairs of a grammatical and an ungrammatical sentence. Both
sweeps have the same trials, rows and seeds; the finalists of each are compared on all validation pairs. The cache is
empty before the first sweep: its reference is computed once for all trials, and the second one finds it there.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, print_table, write_result
from cohort.engine.train.progress import SilentWatcher
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


class _Notes(SilentWatcher):
    """Keeps what a run says of its reference."""

    def __init__(self) -> None:
        self.reference: list[str] = []

    def note(self, text: str) -> None:
        if text.startswith("reference log-probabilities"):
            self.reference.append(text)


def swept(options: argparse.Namespace, folder: Path, *, early_exit: dict[str, Any] | str) -> dict[str, Any]:
    """Run one sweep; return its winner and what it cost."""
    data = {
        "model_name_or_path": str(options.shared / "models" / "stories260K" / "hf"),
        "dataset": {
            "train": str(options.shared / "data" / "preference" / "blimp_pairs.jsonl"),
            "validation": 0.05,
            "max_train_samples": options.pairs,
        },
        "search": {"space": SPACES[options.configurations]},
        "objective": "dpo",
        "lora": {"target_modules": "all-linear"},
        "training": {"max_steps": options.steps, "batch_size": 8, "lr_scheduler_type": "linear"},
        "evaluation": {"metric": "reward_accuracy", "max_examples": 200, "max_cost_fraction": 0.5, "finalists": 3},
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
        "seconds": seconds,
        "best_trial": {"trial": best.get("trial"), **best.get("parameters", {})},
        "metrics": dict(result.metrics),
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
    parser.add_argument("--gpu", action="store_true", help="train on the GPU")
    parser.add_argument("--out", type=Path, default=RESULTS / "preference_study.json")
    options = parser.parse_args()
    options.shared = options.shared.resolve()
    rows = []
    with tempfile.TemporaryDirectory(prefix="preference-study-") as made:
        os.environ["COHORT_CACHE_DIR"] = str(Path(made) / "cache")
        for name, early_exit in (("none", "none"), ("patterns", {"rule": "patterns"})):
            rows.append(swept(options, Path(made) / name, early_exit=early_exit))
            print(rows[-1], flush=True)
    headline = {f"preference_accuracy_{row['early_exit']}": row["metrics"]["reward_accuracy"] for row in rows}
    headline["preference_trained_share"] = rows[1]["trained_tokens"] / rows[0]["trained_tokens"]
    notes = {"configurations": options.configurations, "steps": options.steps, "pairs": options.pairs}
    write_result(options.out, question=QUESTION, headline=headline, rows=rows, notes=notes)
    print_table(rows, columns=["early_exit", "trained_tokens", "seconds"])


if __name__ == "__main__":
    main()
