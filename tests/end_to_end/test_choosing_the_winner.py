"""Small data on which few validation rows mislead: the adapter that is best on all of them is chosen.

Rows like those of intent data (one of eight intents for a query) and of minimal pairs (is a sentence grammatical), 96
of them for validation and 16 for each evaluation.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from cohort.adapters.adapter_state import AdapterState
from cohort.checkpoints.stored_state import StoredState, StoredStateKind
from cohort.core.clock import SystemClock
from cohort.engine.train.evaluation import RunEvaluator
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.watching.time_spent import TimeSpent
from cohort.engine.tune import tune
from cohort.prepare.preparation import Preparation, prepare
from cohort.runs.reader import RunReader
from cohort.runs.results.results import best_first, read_results
from cohort.tasks.loading import task_from_mapping
from cohort.training.checkpoint import read_weights
from cohort.training.trial import TrialState
from tests.cli.tiny_task import write_tiny_model

NUM_TRAIN, NUM_VALIDATION = 48, 96
OBJECTS = {
    "pay": ("rent", "bill", "loan", "tax", "fee", "fine"),
    "book": ("room", "flight", "table", "car", "ticket", "tour"),
    "play": ("song", "film", "game", "show", "tune", "clip"),
    "send": ("mail", "text", "note", "card", "file", "link"),
}
FORMS = ("{} the {}", "please {} a {}", "can you {} my {}", "I want to {} this {}", "{} {} now", "never {} any {}")
NOUNS = ("dog", "cat", "boy", "girl", "bird", "cow", "horse", "guest", "child", "nurse")
VERBS = ("sleep", "run", "sing", "jump", "smile", "wait", "work", "dance", "eat", "read")


def intents() -> list[dict[str, Any]]:
    return [
        {"prompt": f"Query: {form.format(verb, noun)}\nIntent:\n", "completion": f"{verb}_{noun}"}
        for verb, nouns in OBJECTS.items()
        for noun in nouns
        for form in FORMS
    ]


def minimal_pairs() -> list[dict[str, Any]]:
    rows = []
    for noun in NOUNS:
        for verb in VERBS:
            for ending, answer in (("s", "yes"), ("", "no")):
                prompt = f"Sentence: The {noun} {verb}{ending}.\nGrammatical (yes or no):\n"
                rows.append({"prompt": prompt, "completion": answer, "choices": ["yes", "no"]})
    return rows


def all_rows_measured_alone(preparation: Preparation, run: Path) -> dict[int, tuple[float, ...]]:
    """Return the sort key of every trial on all validation rows, each trial measured alone in the bank."""
    rows, executor = preparation.inputs.data.all_validation, preparation.build_executor()
    share = ExecutorShare(executor, rows=preparation.inputs.data.train)
    evaluator = RunEvaluator(preparation, share, time_spent=TimeSpent(SystemClock()))
    with RunReader.open(run / "run.db") as reader:
        trials, metric = reader.trials(), reader.facts().objective_metric
    specs, found = {trial.spec.trial_id: trial.spec for trial in preparation.proposals.first}, {}
    for trial in trials:
        assert trial.best_step is not None
        state = StoredState(trial.trial_id, StoredStateKind.BEST, trial.best_step)
        weights_rD, step = read_weights(run / state.relative_path)
        share.load(specs[trial.trial_id], TrialState(adapter=AdapterState(weights=weights_rD), step=step))
        (measured,) = evaluator.measure([trial.trial_id], rows=rows, row_ids=range(len(rows)))
        share.drop(trial.trial_id)
        value = metric.read_record(measured.validation_loss, measured.metrics)
        assert value is not None
        found[trial.trial_id] = metric.order(
            value, validation_loss=measured.validation_loss, step=step, trial_id=trial.trial_id
        )
    return found


# seeds whose 16 rows mislead
@pytest.mark.parametrize(
    ("rows", "metric", "seed"),
    [(intents(), "loss", 4), (minimal_pairs(), "choice_accuracy", 0)],
    ids=["intents", "minimal_pairs"],
)
def test_the_adapter_that_is_best_on_all_validation_rows_is_chosen(
    rows: list[dict[str, Any]], metric: str, seed: int, tmp_path: Path
) -> None:
    write_tiny_model(tmp_path / "model")
    random.Random(seed).shuffle(rows)
    for name, part in {
        "train": rows[:NUM_TRAIN],
        "validation": rows[NUM_TRAIN : NUM_TRAIN + NUM_VALIDATION],
    }.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    task = task_from_mapping(
        {
            "model_name_or_path": "model",
            "dataset": {"train": "train.jsonl", "validation": "validation.jsonl"},
            "lora": {"r": 4},
            "training": {"max_steps": 4, "batch_size": 4},
            # trials that differ in their seed alone are so close that few rows cannot tell them apart
            "search": {"space": {"seed": [0, 1, 2, 3, 4], "learning_rate": 2e-2}},
            # 16 rows of an evaluation as of a real small task; the sweep is too short to pay for the rest
            "evaluation": {
                "metric": metric,
                "max_examples": 16,
                "max_cost_fraction": 50.0,
                "finalists_cost_fraction": 50.0,
                "warmup_evaluations": 1,
                "every_fraction": 1.0,
            },
            "early_exit": "none",
            "num_gpus": 0,
        },
        base_directory=tmp_path,
    )
    tune(task, tmp_path / "run")
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        results, trials = read_results(reader), reader.trials()
    finals = results.facts.finals
    assert finals is not None
    assert (results.facts.inputs.evaluation_rows, finals.num_rows) == (16, 96)
    alone = all_rows_measured_alone(prepare(task, clock=SystemClock()), tmp_path / "run")
    assert results.facts.best_trial_id == min(alone, key=alone.__getitem__)
    leader = best_first(trials, metric=results.metric)[0].trial_id
    assert leader != results.facts.best_trial_id, "16 rows prefer another trial, so the test can fail"
