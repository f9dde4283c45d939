"""The table of trials as a file and as JSON, and the log as metrics.jsonl."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from cohort.runs.results import read_results
from cohort.runs.results_table import results_json, write_metrics_jsonl, write_results_csv
from cohort.runs.store import RunStore
from tests.runs.small_run import SmallRun


def test_the_csv_holds_every_trial(run: SmallRun) -> None:
    directory, store, _ = run
    write_results_csv(directory.results_csv, results=read_results(store.reader))
    with directory.results_csv.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["trial"] for row in rows] == ["1", "0", "2", "3"]
    assert rows[0]["eval_loss"] == "1.25"
    assert rows[1]["status"] == "completed"
    assert rows[2]["eval_loss"] == ""
    assert rows[2]["last_loss"] == "nan"
    assert json.loads(rows[0]["target_modules"]) == ["q", "v"]


def test_metrics_are_log_history_in_strict_json(run: SmallRun) -> None:
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


def test_json_is_strict_and_complete(run: SmallRun) -> None:
    printed = json.loads(json.dumps(results_json(read_results(run[1].reader)), allow_nan=False))
    assert printed["best"]["trial"] == 1
    assert [trial["rank"] for trial in printed["trials"]] == [1, 2, 3, 4]
    assert printed["compute"]["planned_tokens"] == 1400


def test_results_of_a_run_that_has_not_begun(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run.db")
    results = read_results(store.reader)
    assert results.best is None
    assert results.compute.share_of_full_grid is None
    write_results_csv(tmp_path / "results.csv", results=results)
    json.dumps(results_json(results), allow_nan=False)
