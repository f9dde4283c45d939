"""The columns of the table of trials that people see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cohort.core.statistics.estimates import Estimate
from cohort.report.trial_columns import Medium, shown_columns
from cohort.runs.results.results import read_results
from tests.runs.small_run import write_small_run


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
