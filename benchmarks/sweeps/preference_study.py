"""Does early exit find the same reward accuracy? A DPO sweep on real pairs, with and without it, on a CPU.

The base model is stories260K, the pairs are BLiMP's minimal pairs of a grammatical and an ungrammatical sentence. Both
sweeps have the same trials, rows and seeds; the finalists of each are compared on all validation pairs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import cohort
from benchmarks.measure import RESULTS, print_table, write_result

QUESTION = (
    "Which reward accuracy does a DPO sweep reach with and without early exit, and at what share of the training?"
)
SPACE = {"learning_rate": [1e-3, 3e-3, 1e-2], "beta": [0.1, 0.5], "r": [4, 16], "lora_alpha": "2r"}


def swept(shared: Path, folder: Path, *, early_exit: dict[str, Any] | str, steps: int, pairs: int) -> dict[str, Any]:
    """Run one sweep; return its winner and what it cost."""
    task = cohort.Task(
        model=shared / "models" / "stories260K" / "hf",
        dataset={
            "train": str(shared / "data" / "preference" / "blimp_pairs.jsonl"),
            "validation": 0.05,
            "max_train_samples": pairs,
        },
        search_space=SPACE,
        objective="dpo",
        training={"max_steps": steps, "batch_size": 8, "lr_scheduler_type": "linear"},
        evaluation={"metric": "reward_accuracy", "max_examples": 200, "max_cost_fraction": 0.5, "finalists": 3},
        early_exit=early_exit,  # type: ignore[arg-type]
        num_gpus=0,
    )
    begun = time.perf_counter()
    result = cohort.run(task, run_directory=folder)
    trained = sum(int(trial["tokens"]) for trial in result.trials)
    best = result.best_trial or {}
    return {
        "early_exit": early_exit if isinstance(early_exit, str) else "patterns",
        "seconds": time.perf_counter() - begun,
        "best_trial": {"trial": best.get("trial"), **best.get("parameters", {})},
        "metrics": dict(result.metrics),
        "base_accuracy": result.base_value,
        "trained_tokens": trained,
    }


def main() -> None:
    """Sweep twice, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=Path, help="folder with data/ and models/ (see THIRD_PARTY_NOTICES.md)")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=480, help="training pairs")
    parser.add_argument("--out", type=Path, default=RESULTS / "preference_study.json")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="preference-study-") as made:
        for name, early_exit in (("none", "none"), ("patterns", {"rule": "patterns"})):
            rows.append(
                swept(
                    options.shared, Path(made) / name, early_exit=early_exit, steps=options.steps, pairs=options.pairs
                )
            )
            print(rows[-1], flush=True)
    headline = {f"preference_accuracy_{row['early_exit']}": row["metrics"]["reward_accuracy"] for row in rows}
    headline["preference_trained_share"] = rows[1]["trained_tokens"] / rows[0]["trained_tokens"]
    write_result(options.out, question=QUESTION, headline=headline, rows=rows, notes={"steps": options.steps})
    print_table(rows, columns=["early_exit", "trained_tokens", "seconds"])


if __name__ == "__main__":
    main()
