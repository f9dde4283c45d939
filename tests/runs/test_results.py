"""What a run came to: ranking, compute saved, CSV, JSON lines, JSON, status, model card."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.core.events import Evaluated, StepDone
from cohort.engine.adapter_files.model_card import render_model_card
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import InputFacts, RunPlaces, RunState, TaskFacts
from cohort.runs.reader import RunReader
from cohort.runs.records import NewTrial, TrialStatus
from cohort.runs.results import RunResults, read_results
from cohort.runs.status import read_status
from cohort.runs.store import RunStore
from cohort.runs.tables import results_json, write_metrics_jsonl, write_results_csv
from cohort.tuning.decisions import Decision, DecisionKind, Reason
from cohort.tuning.objective_metric import ObjectiveMetric
from tests.runs.synthetic_run import SyntheticRun, new_best, write_synthetic_run


def _step(trial_id: int, step: int, *, loss: float = 1.0, tokens: int = 100) -> StepDone:
    return StepDone(trial_id=trial_id, step=step, loss=loss, grad_norm=0.5, learning_rate=1e-4, num_tokens=tokens)


def _evaluated(trial_id: int, step: int, loss: float, **metrics: float) -> Evaluated:
    return Evaluated(trial_id=trial_id, step=step, validation_loss=loss, metrics=metrics, num_tokens=50)


@pytest.fixture
def run(tmp_path: Path) -> tuple[RunDirectory, RunStore, ManualClock]:
    """Four trials: 0 completes, 1 is stopped, 2 diverges to NaN without an evaluation, 3 never begins."""
    directory = RunDirectory.create(tmp_path / "run")
    store = RunStore.create(directory.database, clock=(clock := ManualClock()))
    store.set_facts(
        task_name="gsm8k", places=RunPlaces(base_model="meta-llama/Llama-3.2-1B"), base_metrics={"loss": 3.0}
    )
    store.add_trials(
        [
            NewTrial(
                trial_id=n,
                parameters={"learning_rate": 1e-5, "r": 24, "batch_size": 2, "target_modules": ["q", "v"]},
                planned_steps=4,
                planned_tokens=None if n == 2 else 400,
                seed=n,
            )
            for n in range(4)
        ]
    )
    store.append([_step(0, step, tokens=100) for step in range(1, 5)])
    for evaluated in (_evaluated(0, 2, 2.0, exact_match=0.5), _evaluated(0, 4, 1.5)):
        store.append([evaluated], [new_best(evaluated)])
    clock.advance(10)
    evaluated = _evaluated(1, 1, 1.25)
    store.append([_step(1, 1), evaluated, _step(2, 1, loss=math.nan, tokens=50)], [new_best(evaluated)])
    stop, finish = DecisionKind.STOP, DecisionKind.FINISH
    store.append(
        [],
        [
            Decision(trial_id=0, step=4, kind=finish, reason=Reason("completed"), rule="study"),
            Decision(trial_id=1, step=1, kind=stop, reason=Reason("underperforming"), rule="patterns"),
            Decision(trial_id=2, step=1, kind=stop, reason=Reason("non-finite"), rule="patterns"),
        ],
    )
    return directory, store, clock


def _results(store: RunStore) -> RunResults:
    return read_results(store.reader)


def test_trials_are_ranked_by_their_best_value(run: tuple[RunDirectory, RunStore, ManualClock]) -> None:
    results = _results(run[1])
    assert [entry.trial.trial_id for entry in results.ranked] == [1, 0, 2, 3]
    assert results.ranked[0].why == "validation loss 1.25 at step 1; stopped at step 1: underperforming"
    assert results.ranked[2].why == "no finite validation loss; stopped at step 1: non-finite"
    assert results.ranked[3].why.endswith("not begun")
    assert results.best is not None
    assert results.best.trial_id == 1
    assert results.worst is not None
    assert results.worst.trial_id == 0
    assert results.base_value == 3.0


def test_the_recorded_best_wins_over_the_ranking(run: tuple[RunDirectory, RunStore, ManualClock]) -> None:
    run[1].set_facts(best_trial_id=0, task=TaskFacts(default_trial_id=0))
    results = _results(run[1])
    assert results.best is not None
    assert results.best.trial_id == 0
    assert results.default_value == 1.5
    assert results.default_trial == results.best
    run[1].set_facts(default_metrics={"loss": 1.75})
    assert (_results(run[1]).default_value, _results(run[1]).default_trial) == (1.75, None)


def test_compute_saved_by_hand(run: tuple[RunDirectory, RunStore, ManualClock]) -> None:
    compute = _results(run[1]).compute
    assert compute.trained_tokens == 4 * 100 + 100 + 50
    assert compute.evaluation_tokens == 3 * 50
    # trial 2 planned no tokens: 50 a step, four steps
    assert compute.planned_tokens == 3 * 400 + 200
    assert (compute.trained_samples, compute.planned_samples) == (6 * 2, 16 * 2)
    assert compute.cost_tokens == 550 + 75
    assert compute.share_of_full_grid == pytest.approx(625 / 1400)
    assert compute.num_full_runs == pytest.approx(4 * 625 / 1400)


def test_the_csv_holds_every_trial(run: tuple[RunDirectory, RunStore, ManualClock]) -> None:
    directory, store, _ = run
    write_results_csv(directory.results_csv, results=_results(store))
    with directory.results_csv.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["trial"] for row in rows] == ["1", "0", "2", "3"]
    assert rows[0]["eval_loss"] == "1.25"
    assert rows[1]["status"] == "completed"
    assert rows[2]["eval_loss"] == ""
    assert rows[2]["last_loss"] == "nan"
    assert json.loads(rows[0]["target_modules"]) == ["q", "v"]


def test_metrics_are_log_history_in_strict_json(run: tuple[RunDirectory, RunStore, ManualClock]) -> None:
    directory, store, _ = run
    write_metrics_jsonl(directory.metrics_jsonl, reader=store.reader)

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in directory.metrics_jsonl.read_text().splitlines()]
    assert len(lines) == 9
    assert lines[3] == {
        "trial": 0,
        "step": 4,
        "seconds": 0.0,
        "loss": 1.0,
        "grad_norm": 0.5,
        "learning_rate": 1e-4,
        "num_tokens": 400,
    }
    assert lines[4]["eval_exact_match"] == 0.5
    assert lines[-1]["loss"] is None


def test_json_is_strict_and_complete(run: tuple[RunDirectory, RunStore, ManualClock]) -> None:
    printed = json.loads(json.dumps(results_json(_results(run[1])), allow_nan=False))
    assert printed["best"]["trial"] == 1
    assert [trial["rank"] for trial in printed["trials"]] == [1, 2, 3, 4]
    assert printed["compute"]["planned_tokens"] == 1400


def test_results_of_a_run_that_has_not_begun(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run.db")
    results = _results(store)
    assert results.best is None
    assert results.compute.share_of_full_grid is None
    write_results_csv(tmp_path / "results.csv", results=results)
    json.dumps(results_json(results), allow_nan=False)


def test_status_says_who_runs_it_and_how_fast(run: tuple[RunDirectory, RunStore, ManualClock]) -> None:
    directory, store, clock = run
    store.trial_entered(3, slot=1)
    with directory.lock():
        status = read_status(directory)
    assert status.state == "running"
    assert status.holder.startswith("process ")
    assert status.counts[TrialStatus.RUNNING] == 1
    assert status.counts[TrialStatus.PARKED] == 0
    assert status.resident == ((1, 3),)
    assert status.stopped_reasons == {"underperforming": 1, "non-finite": 1}
    # run time is 10 s, and what was logged at second 0 lies outside the open window
    assert status.tokens_per_second == pytest.approx((100 + 50 + 50) / 10)
    # trial 3 has four steps of 100 tokens left, and 150/550 as many tokens to evaluate
    assert status.seconds_left == pytest.approx(4 * 100 * (1 + 150 / 550) / 20)
    # with a warm-up of one step and a quarter kept, three quarters of its other steps are not expected
    store.set_facts(task=TaskFacts(warmup_fraction=0.25, kept_share=0.25))
    assert read_status(directory).seconds_left == pytest.approx((1 + 0.25 * 3) * 100 * (1 + 150 / 550) / 20)
    assert read_status(directory).state == "stopped"
    store.set_facts(state=RunState.DONE)
    assert (read_status(directory).state, read_status(directory).seconds_left) == ("done", 0.0)
    assert clock.monotonic() == 10


def test_the_model_card_can_be_loaded_by_the_hub(run: tuple[RunDirectory, RunStore, ManualClock]) -> None:
    run[1].set_facts(inputs=InputFacts(data_hash="ab12"), task=TaskFacts(training={"weight_decay": 0.01}))
    card = render_model_card(_results(run[1]), trial_id=1)
    head, front, body = card.split("---\n", 2)
    assert head == ""
    assert "base_model: meta-llama/Llama-3.2-1B\n" in front
    assert "library_name: peft\n" in front
    assert "| validation loss | 1.25 |" in body
    assert "| learning_rate | 1e-05 |" in body
    assert "| weight_decay | 0.01 |" in body
    assert "| data hash | ab12 |" in body
    # 24 is no value of that option; 32 is the next
    assert "--max-lora-rank 32" in body


def test_a_local_base_model_stays_out_of_the_front_matter(
    run: tuple[RunDirectory, RunStore, ManualClock], tmp_path: Path
) -> None:
    run[1].set_facts(places=RunPlaces(base_model=str(tmp_path)))
    card = render_model_card(_results(run[1]), trial_id=0)
    assert "base_model" not in card.split("---\n", 2)[1]
    assert f'from_pretrained("{tmp_path}")' in card


def test_a_metric_that_is_maximized_ranks_the_other_way(tmp_path: Path) -> None:
    metric = ObjectiveMetric(name="exact_match", maximize=True)
    path = write_synthetic_run(tmp_path / "run.db", SyntheticRun(trials=12, steps=60, metric=metric))
    with RunReader.open(path) as reader:
        values = [entry.trial.best_value for entry in read_results(reader).ranked]
    found = [value for value in values if value is not None]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]
