"""What comparing the best trials on all validation rows changes, and what it costs.

Rows ``choice`` are small sweeps through the product: a grid of 12 or 9 trials on 240 rows of a real set, a model of
260,000 parameters, default settings. Of each they say which trial led on the few rows of the evaluations, which one won
the comparison at the end, which one would have won it with five finalists on all 160 validation rows (``five``), and
what each of the three has on 240 test rows that no step reads. What every trial has on each of these rows is kept in
``benchmarks/sweeps/finalist_rows/``, so that other ways to choose can be tried without training.

Rows ``cost`` are task files as they are: which share of the sweep the comparison took, in tokens of training and in
seconds.

Rows that the result file has already are left alone, so an interrupted run goes on with the same command.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, write_result
from cohort.adapters.adapter_state import AdapterState
from cohort.checkpoints.trial_states import StoredState, StoredStateKind
from cohort.core.clock import SystemClock
from cohort.core.statistics.bootstrap_intervals import difference_interval
from cohort.engine.tune import tune
from cohort.prepare.preparation import prepare
from cohort.runs.facts import Activity
from cohort.runs.reader import RunReader
from cohort.runs.results.results import best_first, read_results
from cohort.tasks.loading import load_task, task_from_mapping
from cohort.tasks.task_file import TaskFile
from cohort.training.checkpoint import read_weights
from cohort.training.trial import TrialState
from cohort.tuning.evaluation_times import EVALUATION_TOKEN_COST

NAME = "finalists"
ROWS = Path(__file__).parent / "finalist_rows"
# the loss of a row to this many digits: choices differ by far more
_DIGITS = 5
SETS = {
    "clinc150": "nlu/clinc150.jsonl",
    "banking77": "nlu/banking77.jsonl",
    "blimp": "nlu/blimp_acceptability.jsonl",
    "svamp": "sft/svamp.jsonl",
    "induction": "sft/induction_tasks.jsonl",
    "cot_reasoning": "sft/cot_reasoning.jsonl",
}
NUM_TRAIN, NUM_VALIDATION, NUM_TEST = 240, 160, 240
GRIDS: dict[str, dict[str, Any]] = {
    # learning rates from too small to too large: usually one is best by far
    "coarse": {"learning_rate": [3e-3, 5e-3, 1e-2, 2e-2, 3e-2, 5e-2], "r": [8], "batch_size": [4, 8]},
    # around the best: the leaders are close
    "fine": {"learning_rate": [8e-3, 1e-2, 1.3e-2], "r": [4, 8, 16], "batch_size": [4]},
}


def study_task(folder: Path, *, data: Path, model: Path, grid: str, seed: int) -> TaskFile:
    """Return the task of one small sweep on rows of ``data`` that ``seed`` chose, written to ``folder``."""
    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    # the same prompt twice would be in two splits
    rows = list({row["prompt"]: {"prompt": row["prompt"], "completion": row["completion"]} for row in rows}.values())
    random.Random(seed).shuffle(rows)
    borders = {"train": (0, NUM_TRAIN), "validation": (NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION)}
    borders["test"] = (NUM_TRAIN + NUM_VALIDATION, NUM_TRAIN + NUM_VALIDATION + NUM_TEST)
    for split, (start, stop) in borders.items():
        text = "".join(json.dumps(row) + "\n" for row in rows[start:stop])
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
    files = {split: f"{split}.jsonl" for split in borders}
    return task_from_mapping(
        {
            "model_name_or_path": str(model.resolve()),
            "dataset": {**files, "max_length": 512},
            "training": {"num_train_epochs": 1, "seed": seed},
            "search": {"space": {**GRIDS[grid], "lora_alpha": "2r"}},
            "num_gpus": 0,
        },
        base_directory=folder,
    )


def outcome(run: Path) -> dict[str, Any]:
    """Return what the comparison of a finished run chose and cost."""
    with RunReader.open(run / "run.db") as reader:
        results, trials = read_results(reader), reader.trials()
    finals, facts = results.facts.finals, results.facts
    assert finals is not None, "the task asks for finalists"
    order, winner = best_first(trials, metric=results.metric), finals.winner
    leader = order[0]
    of_leader = finals.of_trial(leader.trial_id)
    assert of_leader is not None, "the leader of the search is a finalist"
    # without the comparison itself
    searched = results.compute.cost_tokens - EVALUATION_TOKEN_COST * finals.num_tokens
    values = {"leader": of_leader.values["loss"].value, "winner": winner.values["loss"].value}
    spent = facts.seconds.get(Activity.COMPARE, 0.0)
    return {
        "evaluation_rows": facts.inputs.evaluation_rows,
        "validation_rows": finals.num_rows,
        "finalists": len(finals.ranked),
        "leader": leader.trial_id,
        "winner": winner.trial_id,
        "changed": leader.trial_id != winner.trial_id,
        "order": [trial.trial_id for trial in order],
        **{f"{name}_validation_loss": value for name, value in values.items()},
        "token_cost_percent": 100 * EVALUATION_TOKEN_COST * finals.num_tokens / searched,
        "seconds_percent": 100 * spent / (results.run_seconds - spent),
        "seconds": results.run_seconds,
    }


def row_losses(task: TaskFile, run: Path) -> dict[str, Any]:
    """Return what each trial's best checkpoint has on every validation and test row, each trial measured alone."""
    preparation = prepare(task, clock=SystemClock())
    data, executor = preparation.inputs.data, preparation.build_executor()
    assert data.test is not None, "the task names test rows"
    splits = {"validation": data.all_validation, "test": data.test}
    specs = {trial.spec.trial_id: trial.spec for trial in preparation.proposals.first}
    with RunReader.open(run / "run.db") as reader:
        steps = {trial.trial_id: trial.best_step for trial in reader.trials()}
    found: dict[str, Any] = {split: {"tokens": [], "losses": {}} for split in splits}
    for trial_id, step in steps.items():
        if step is None:
            continue
        weights_rD, _ = read_weights(run / StoredState(trial_id, StoredStateKind.BEST, step).relative_path)
        executor.load(specs[trial_id], TrialState(adapter=AdapterState(weights=weights_rD), step=step))
        for split, rows in splits.items():
            loss = executor.evaluate([trial_id], rows=rows, row_ids=range(len(rows)))[trial_id]
            found[split]["tokens"] = [int(count) for count in loss.divisors]
            found[split]["losses"][str(trial_id)] = [float(f"{term:.{_DIGITS}g}") for term in loss.terms]
        executor.drop(trial_id)
    return found


def choices(row: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return who would win with five finalists on all validation rows, and test losses with their differences."""
    means = {
        split: {int(trial): sum(losses) / sum(own["tokens"]) for trial, losses in own["losses"].items()}
        for split, own in measured.items()
    }
    five = min(row["order"][:5], key=lambda trial: means["validation"][trial])
    chosen = {"leader": row["leader"], "winner": row["winner"], "five": five}
    found: dict[str, Any] = {"five": five, "test_rows": len(measured["test"]["tokens"])}
    found |= {f"{name}_test_loss": means["test"][trial] for name, trial in chosen.items()}
    found["best_test_loss"] = min(means["test"].values())
    for name in ("winner", "five"):
        interval = None if chosen[name] == row["leader"] else _difference(measured["test"], chosen[name], row["leader"])
        found[f"{name}_minus_leader"] = interval
    return found


def _difference(measured: Mapping[str, Any], trial: int, other: int) -> list[float] | None:
    """Return the 95 % interval of the test loss of ``trial`` less that of ``other``, paired by row."""
    losses = measured["losses"]
    interval = difference_interval(losses[str(trial)], losses[str(other)], measured["tokens"])
    return None if interval is None else [interval.low, interval.high]


def headline(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures that the documents show."""
    chosen = [row for row in rows if row["table"] == "choice"]
    changed = [row for row in chosen if row["changed"]]
    figures: dict[str, float] = {"sweeps": len(chosen), "winners_changed": len(changed)}
    for name, moved in (("", changed), ("five_", [row for row in chosen if row["five"] != row["leader"]])):
        which = "five" if name else "winner"
        if name:
            figures["five_winners_changed"] = len(moved)
        if not moved:
            continue
        ratios = [row[f"{which}_test_loss"] / row["leader_test_loss"] for row in moved]
        figures[f"{name}changed_better_on_test"] = sum(ratio < 1 for ratio in ratios)
        intervals = [row[f"{which}_minus_leader"] for row in moved]
        figures[f"{name}changed_surely_better"] = sum(found is not None and found[1] < 0 for found in intervals)
        figures[f"{name}changed_surely_worse"] = sum(found is not None and found[0] > 0 for found in intervals)
        figures[f"{name}changed_test_loss_ratio_median"] = statistics.median(ratios)
        figures[f"{name}changed_test_loss_ratio_worst"] = max(ratios)
        figures[f"{name}changed_test_loss_ratio_best"] = min(ratios)
    if chosen:
        for name in ("leader", "winner", "five"):
            over_best = [row[f"{name}_test_loss"] / row["best_test_loss"] for row in chosen]
            figures[f"{name}_over_best_test_mean"] = statistics.fmean(over_best)
        figures["token_cost_percent_max"] = max(row["token_cost_percent"] for row in chosen)
    for row in rows:
        if row["table"] == "cost":
            figures[f"token_cost_percent_{row['task']}"] = row["token_cost_percent"]
            figures[f"seconds_percent_{row['task']}"] = row["seconds_percent"]
    return figures


def main() -> None:
    """Run what is missing and write the result file after each sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with nlu/ and sft/")
    parser.add_argument("--model", type=Path, required=True, help="directory of the 260K checkpoint")
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--grid", default="coarse", choices=list(GRIDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--output", type=Path, default=RESULTS / f"{NAME}.json", metavar="FILE")
    parser.add_argument("--train-rows", type=int, default=None, help="of --tasks; all by default")
    parser.add_argument("--tasks", type=Path, nargs="*", default=[], help="task files whose cost is measured")
    arguments = parser.parse_args()
    path = arguments.output
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []

    def write() -> None:
        write_result(
            path,
            question="What does comparing the best trials on all validation rows change, and what does it cost?",
            headline=headline(rows),
            rows=rows,
        )

    for task_file in arguments.tasks:
        name = task_file.resolve().parent.name
        if any(row["table"] == "cost" and row["task"] == name for row in rows):
            continue
        with tempfile.TemporaryDirectory() as folder:
            options = ["--num_gpus", "0"]
            if arguments.train_rows is not None:
                options += ["--dataset.max_train_samples", str(arguments.train_rows)]
            tune(load_task(task_file, options), Path(folder) / "run")
            limit = {} if arguments.train_rows is None else {"train_rows": arguments.train_rows}
            rows.append({"table": "cost", "task": name, **outcome(Path(folder) / "run"), **limit})
        write()
    for seed in arguments.seeds:
        for name in arguments.sets:
            key = {"table": "choice", "set": name, "grid": arguments.grid, "seed": seed}
            if any(row.items() >= key.items() for row in rows):
                continue
            folder = Path(tempfile.mkdtemp())
            data = arguments.data / SETS[name]
            task = study_task(folder, data=data, model=arguments.model, grid=arguments.grid, seed=seed)
            tune(task, folder / "run")
            row = {**key, **outcome(folder / "run")}
            measured = row_losses(task, folder / "run")
            rows.append({**row, **choices(row, measured)})
            ROWS.mkdir(exist_ok=True)
            kept = ROWS / f"{name}_{arguments.grid}_seed{seed}.json.gz"
            text = json.dumps({**key, "order": row["order"], **measured}, separators=(",", ":"))
            # no time in the header: equal contents are equal files
            kept.write_bytes(gzip.compress(text.encode(), mtime=0))
            shutil.rmtree(folder)
            write()
            print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
