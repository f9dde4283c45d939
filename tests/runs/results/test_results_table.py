"""The table of trials as a file and as JSON."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from cohort.runs.results.results import read_results
from cohort.runs.results.results_table import results_json, write_results_csv
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
