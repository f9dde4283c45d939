"""What the grid's learning rates are multiplied by for a small model, chosen on a set that the study does not report.

The grid's rates suit models of billions of weights, where LoRA is best near 3e-4. A small model wants larger ones: one
pack trains a row of rates at the middle rank and batch size, and the scale brings the grid's 3e-4 to the largest rate
whose loss is within 1 % of the best: closer than that 128 rows do not tell rates apart, and large batches want more.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.sweeps.record_curves import add_model_arguments, build_executor, record
from benchmarks.sweeps.study_data import STUDIED, read_rows, validation_rows
from benchmarks.sweeps.sweep_grid import plan_grid

# three a decade
RATES = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 3e-3, 5e-3, 7e-3, 1e-2, 2e-2, 5e-2)
USUAL_BEST = 3e-4
SAME = 1.01


def main() -> None:
    """Train the row of rates, print their losses, write the scale."""
    [name] = [name for name, entry in STUDIED.items() if entry.role == "range"]
    parser = argparse.ArgumentParser(description=__doc__)
    add_model_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=4)
    arguments = parser.parse_args()
    train = read_rows(arguments.prepared, name, "train", count=arguments.rows)
    validation = validation_rows(arguments.prepared, name, seed=0, count=arguments.evaluation_rows)
    planned = plan_grid(
        len(train),
        epochs=arguments.epochs,
        learning_rates=RATES,
        ranks=(arguments.rank,),
        batch_sizes=(arguments.batch_size,),
    )
    executor = build_executor(arguments, [trial.spec for trial in planned], train)
    base = executor.evaluate_base(rows=validation, row_ids=range(len(validation)))
    found = record(executor, planned, validation, name=name)
    bests = {trial.learning_rate: found.best(trial.spec.trial_id) for trial in planned}
    lowest = min(bests.values())
    best = max(rate for rate, loss in bests.items() if loss <= SAME * lowest)
    scale = float(f"{best / USUAL_BEST:.1g}")
    how = (
        f"largest of {len(RATES)} rates within 1 % of the best on {name} (r {arguments.rank}, "
        f"batch {arguments.batch_size}): {best:g}, "
        f"which the grid's {USUAL_BEST:g} is brought to"
    )
    losses = {f"{rate:g}": loss for rate, loss in bests.items()}
    content = {"scale": scale, "how": how, "losses": losses, "base_loss": base.loss, "seconds": found.seconds}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
