"""How far trials differ from row to row when early exit compares them, measured on real rows.

The grids of the early-exit study recorded mean losses, and an interval over rows needs what each row has. A small model
trains the trials of a grid to the shares at which the default rule compares, on the same sets, and every validation
row's loss is kept. From them come two numbers of each set, by which a replay draws rows around the recorded means: the
difference of two trials on a row has a standard deviation of ``sqrt((slope * difference)**2 + (floor * best)**2)``,
where ``difference`` is that of their means and ``best`` the lowest mean.

Needs the folder that ``study_data.py --tokenizer`` wrote with the small model's own tokenizer, and no GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks.measure import machine, versions
from benchmarks.sweeps.record_curves import add_grid_arguments, add_model_arguments, build_executor, plan
from benchmarks.sweeps.study_data import STUDIED, read_rows, validation_rows
from cohort.tuning.share_counts import ceil_share

OUT = Path(__file__).parent / "row_noise.json"
# where the default rule compares
SHARES = (0.05, 0.2)


def measured(arguments: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    """Return the row losses of every trial of one set's grid at ``SHARES``, as the noise found there."""
    train = read_rows(arguments.prepared, name, "train", count=arguments.rows)
    validation = validation_rows(arguments.prepared, name, seed=0, count=arguments.evaluation_rows)
    planned = plan(arguments, num_rows=len(train), seed=0)
    executor = build_executor(arguments, [trial.spec for trial in planned], train)
    due = {
        trial.spec.trial_id: [ceil_share(share, trial.candidate.planned_steps) for share in SHARES] for trial in planned
    }
    found: dict[float, dict[int, Sequence[float]]] = {share: {} for share in SHARES}
    weights: Sequence[int] = ()
    for trial in planned:
        executor.load(trial.spec)
    while executor.resident:
        for event in executor.step():
            for share, step in zip(SHARES, due[event.trial_id], strict=True):
                if event.step == step:
                    ids = (event.trial_id,)
                    outcome = executor.evaluate(ids, rows=validation, row_ids=range(len(validation)))[event.trial_id]
                    found[share][event.trial_id], weights = outcome.terms, outcome.divisors
            if event.step == due[event.trial_id][-1]:
                executor.drop(event.trial_id)
    tokens = np.array(weights, dtype=np.float64)
    return [
        {"set": name, "share": share, **noise(np.array(list(rows.values()), dtype=np.float64), tokens)}
        for share, rows in found.items()
    ]


def noise(terms: np.ndarray, tokens: np.ndarray) -> dict[str, Any]:
    """Return slope and floor of the noise of row losses.

    Args:
        terms: Summed loss of each trial's row [trials, rows].
        tokens: Trained tokens of each row [rows].
    """
    means, num_rows = terms.sum(axis=1) / tokens.sum(), len(tokens)
    variances, squares = [], []
    for one in range(len(means)):
        for other in range(one):
            gap = means[one] - means[other]
            # of the mean over rows of this kind, times their number: what one row adds
            rest = terms[one] - terms[other] - gap * tokens
            variances.append(num_rows * (rest**2).sum() / tokens.sum() ** 2)
            squares.append(gap**2)
    each, against = np.array(variances), np.array(squares)
    # relative residuals: near pairs, whose separation is in doubt, count as much as far ones
    (slope, floor), _ = nnls(np.stack([against, np.ones_like(against)], axis=1) / each[:, None], np.ones_like(each))
    best = float(means.min())
    return {
        "trials": len(means),
        "rows": num_rows,
        "best": round(best, 4),
        "slope": round(float(np.sqrt(slope)), 4),
        "floor": round(float(np.sqrt(floor)) / best, 4),
    }


def recorded_noise(found: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Return (slope, floor) of each set, at each share."""
    by_set: dict[str, list[tuple[float, float]]] = {}
    for row in found["rows"]:
        by_set.setdefault(row["set"], []).append((row["slope"], row["floor"]))
    return by_set


def main() -> None:
    """Measure what is asked for and add it to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    add_grid_arguments(parser)
    parser.add_argument("--sets", nargs="+", default=list(STUDIED), choices=list(STUDIED))
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    before = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {"rows": []}
    rows = before["rows"]
    for name in arguments.sets:
        begun = time.perf_counter()
        rows = [row for row in rows if row["set"] != name] + measured(arguments, name)
        print(name, rows[-len(SHARES) :], f"{time.perf_counter() - begun:.0f} s", flush=True)
        content = {
            "what": __doc__.split("\n")[0],
            "model": arguments.name,
            "epochs": arguments.epochs,
            "training_rows": arguments.rows,
            "machine": machine(),
            "versions": versions(),
            "rows": rows,
        }
        arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
