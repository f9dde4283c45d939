"""The table of trials as a file and as JSON."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

from cohort.core.statistics.estimates import Estimate
from cohort.runs.results.results import read_results
from cohort.runs.results.results_table import Medium, results_json, shown_columns, write_results_csv
from cohort.runs.store import RunStore
from tests.runs.small_run import SmallRun, write_small_run


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


def test_a_column_says_on_how_many_rows_the_best_were_compared(tmp_path: Path) -> None:
    """The comparison may have had time for some rows only."""
    trials = read_results(write_small_run(tmp_path / "run")[1].reader).ranked
    columns = shown_columns(trials, medium=Medium.TERMINAL, metric_label="validation loss")
    assert not any(" rows" in column.name for column in columns)
    found = Estimate(value=1.5, low=1.0, high=2.0, num_rows=8)
    compared = [replace(trials[0], final_rows=8, final_value=found), *trials[1:]]
    columns = shown_columns(compared, medium=Medium.TERMINAL, metric_label="validation loss")
    (column,) = [column for column in columns if " rows" in column.name]
    assert column.name == "on 8 rows"
    assert column.text is not None
    assert column.text(compared[0]) == "1.5 (1 to 2)"
    # rounded to three digits both ends would be 5.31, and the value outside them
    narrow = replace(found, value=5.3073, low=5.3061, high=5.3084)
    assert column.text(replace(compared[0], final_value=narrow)) == "5.307 (5.306 to 5.308)"
