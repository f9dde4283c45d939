"""What is stored of a run's facts is read back as it was, whichever of the two versions wrote it."""

from __future__ import annotations

import json
from dataclasses import fields

from cohort.core.memory_records import GradientCheckpointing, ObservedPass, PassKind
from cohort.data.split_input import SplitInput
from cohort.runs.fact_groups import InputFacts, MemoryFacts, PassFacts, RunPlaces, SizeFacts, TaskFacts
from cohort.runs.facts import Activity, RunFacts, RunState, stored_facts
from cohort.runs.records import DataProblem
from cohort.runs.store import FactUpdates
from cohort.tuning.objective_metric import ObjectiveMetric, TieRule

UPDATES: FactUpdates = {
    "task_name": "sums",
    "metric": "exact_match",
    "metric_maximize": True,
    "metric_ties": TieRule.LOSS,
    "state": RunState.INTERRUPTED,
    "base_metrics": {"loss": 3.5},
    "run_seconds": 12.5,
    "seconds": {Activity.TOKENISE: 0.5, Activity.TRAIN: 9.0},
    "places": RunPlaces(run_directory="/runs/sums", database_file=("/runs/sums/run.db", 7, 1234)),
    "task": TaskFacts(document={"search": {"space": {"r": [2, 4]}}}, training={"weight_decay": 0.0}),
    "inputs": InputFacts(
        target_modules=("q_proj", "v_proj"),
        data_problems=(DataProblem(where="a:3", found="1 row", allowed="none", hint="Remove it."),),
        train_input=SplitInput(num_rows_read=3, num_bytes=None, files_hash="ab", rows_hash="cd"),
    ),
    "sizes": SizeFacts(num_slots=4, gradient_checkpointing=GradientCheckpointing.AUTO),
    "memory": MemoryFacts(limit_bytes=1 << 30),
    "passes": PassFacts(
        token_budgets={PassKind.TRAIN: 64, PassKind.EVALUATE: 128},
        largest=(ObservedPass(kind=PassKind.TRAIN, rows=9, predicted_bytes=8, observed_bytes=7),),
    ),
}


def stored(updates: FactUpdates) -> dict[str, object]:
    return {key: json.loads(text) for key, text in stored_facts(updates).items() if text is not None}


def test_facts_are_read_as_they_were_stored() -> None:
    assert RunFacts.from_stored(stored(UPDATES)) == RunFacts(**UPDATES)


def test_each_fact_has_a_key_of_its_own() -> None:
    every = RunFacts(seconds=dict.fromkeys(Activity, 1.0))
    keys = list(stored_facts(FactUpdates(**vars(every))))  # type: ignore[typeddict-item]
    groups = [value for value in vars(every).values() if hasattr(value, "__dataclass_fields__")]
    single = len(fields(RunFacts)) - len(groups) - 1
    assert len(keys) == single + len(Activity) + sum(len(fields(group)) for group in groups)


def test_keys_are_those_that_the_version_before_wrote() -> None:
    keys = set(stored_facts(UPDATES))
    assert {"task", "memory_limit_bytes", "train_seconds", "micro_batch_tokens", "memory_largest_passes"} <= keys
    assert {"database_file", "token_budget", "memory_recompute", "recomputed_passes", "memory_shortages"} <= keys


def test_a_fact_that_is_none_removes_what_was_there() -> None:
    assert stored_facts({"best_trial_id": None}) == {"best_trial_id": None}
    assert stored_facts({"sizes": SizeFacts(num_slots=4)})["token_budget"] is None
    assert RunFacts.from_stored({"best_trial_id": None}).best_trial_id is None


def test_nothing_is_known_of_a_run_that_recorded_nothing() -> None:
    assert RunFacts.from_stored({}) == RunFacts()
    assert RunFacts().objective_metric.name == "loss"


def test_the_list_leaves_out_what_a_report_shows_elsewhere() -> None:
    listed = RunFacts.from_stored(stored(UPDATES)).listed()
    assert listed["train_seconds"] == 9.0
    assert listed["memory_recompute"] == "auto"
    assert list(listed) == sorted(listed)
    assert not {"data_problems", "memory_largest_passes", "best_trial_id"} & set(listed)


def test_a_record_without_a_rule_for_ties_keeps_the_one_it_began_with() -> None:
    old = RunFacts.from_stored({"metric": "exact_match", "metric_maximize": True})
    assert old.objective_metric == ObjectiveMetric(name="exact_match", maximize=True, ties=TieRule.EARLIEST)
