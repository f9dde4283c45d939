"""What comparing the best trials on all validation rows changes, and what it costs.

Rows ``choice`` are small sweeps through the product: a grid of 12 or 9 trials on 240 rows of a real set, a model of
260,000 parameters, default settings. Of each they say which trial led on the rows of the evaluations, which one won on
the validation rows at the end (of 160), and what both have on 240 test rows that no step reads.

Rows ``cost`` are task files as they are: which share of the sweep the comparison took, in tokens of training and in
seconds.

Rows that the result file has already are left alone, so an interrupted run goes on with the same command.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, write_result
from cohort.adapters.bank import AdapterState
from cohort.checkpoints.trial_states import StoredState, StoredStateKind
from cohort.core.clock import SystemClock
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
    leader, winner = best_first(trials, metric=results.metric)[0], finals.winner
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
        **{f"{name}_validation_loss": value for name, value in values.items()},
        "token_cost_percent": 100 * EVALUATION_TOKEN_COST * finals.num_tokens / searched,
        "seconds_percent": 100 * spent / (results.run_seconds - spent),
        "seconds": results.run_seconds,
    }


def test_losses(task: TaskFile, run: Path, trial_ids: Sequence[int]) -> dict[int, float]:
    """Return the loss of trials' best checkpoints on the task's test rows, each measured alone."""
    preparation = prepare(task, clock=SystemClock())
    rows, executor = preparation.inputs.data.test, preparation.build_executor()
    assert rows is not None, "the task names test rows"
    specs = {trial.spec.trial_id: trial.spec for trial in preparation.proposals.first}
    with RunReader.open(run / "run.db") as reader:
        steps = {trial.trial_id: trial.best_step for trial in reader.trials()}
    found = {}
    for trial_id in trial_ids:
        step = steps[trial_id]
        assert step is not None, "a trial that was compared has a best checkpoint"
        weights_rD, _ = read_weights(run / StoredState(trial_id, StoredStateKind.BEST, step).relative_path)
        executor.load(specs[trial_id], TrialState(adapter=AdapterState(weights=weights_rD), step=step))
        found[trial_id] = executor.evaluate([trial_id], rows=rows, row_ids=range(len(rows)))[trial_id].loss
        executor.drop(trial_id)
    return found


def headline(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures that the documents show."""
    chosen = [row for row in rows if row["table"] == "choice"]
    changed = [row for row in chosen if row["changed"]]
    figures: dict[str, float] = {"sweeps": len(chosen), "winners_changed": len(changed)}
    if changed:
        ratios = [row["winner_test_loss"] / row["leader_test_loss"] for row in changed]
        figures["changed_better_on_test"] = sum(ratio < 1 for ratio in ratios)
        figures["changed_test_loss_ratio_median"] = statistics.median(ratios)
        figures["changed_test_loss_ratio_worst"] = max(ratios)
        figures["changed_test_loss_ratio_best"] = min(ratios)
    if chosen:
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
    parser.add_argument("--train-rows", type=int, default=None, help="of --tasks; all by default")
    parser.add_argument("--tasks", type=Path, nargs="*", default=[], help="task files whose cost is measured")
    arguments = parser.parse_args()
    path = RESULTS / f"{NAME}.json"
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
            rows.append({"table": "cost", "task": name, **outcome(Path(folder) / "run")})
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
            losses = test_losses(task, folder / "run", sorted({row["leader"], row["winner"]}))
            row |= {f"{part}_test_loss": losses[row[part]] for part in ("leader", "winner")}
            rows.append(row)
            shutil.rmtree(folder)
            write()
            print(row, flush=True)


if __name__ == "__main__":
    main()
