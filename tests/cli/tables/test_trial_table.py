"""Values, columns and constants of the trial table."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from cohort.cli.tables.trial_table import constant_text, format_value, parameter_text, trial_table, varied_names
from cohort.core.statistics.estimates import Estimate
from cohort.runs.records import JsonValue, TrialRecord
from cohort.runs.results.results import RankedTrial, read_results
from cohort.tuning.trial_status import TrialStatus
from tests.runs.small_run import write_small_run

ROWS: list[dict[str, JsonValue]] = [{"learning_rate": 2e-4, "r": 8}, {"learning_rate": 1e-3, "r": 8}]


@pytest.mark.parametrize(
    ("value", "text"), [(2e-5, "2e-05"), (0.25, "0.25"), (16, "16"), (True, "true"), (None, "-"), ("cosine", "cosine")]
)
def test_values_are_short(value: JsonValue, text: str) -> None:
    assert format_value(value) == text


def test_only_what_differs_gets_a_column_and_the_rest_is_told_once() -> None:
    assert varied_names(ROWS) == ["learning_rate"]
    assert constant_text(ROWS) == "r 8 in every trial"
    assert constant_text([{"r": 8}, {"r": 16}]) is None
    assert (varied_names([]), constant_text([])) == ([], None)


def test_parameters_are_listed_by_name() -> None:
    assert parameter_text(ROWS[1], ["r", "learning_rate", "absent"]) == "r 8, learning_rate 0.001"


def test_a_metric_stands_next_to_its_loss_and_other_metrics_give_way_first() -> None:
    trial = TrialRecord(
        trial_id=3,
        parameters={"r": 8},
        status=TrialStatus.COMPLETED,
        reason="completed",
        message="",
        seed=0,
        planned_steps=4,
        steps_done=4,
        planned_tokens=10,
        tokens=10,
        evaluation_tokens=1,
        best_step=4,
        best_value=0.5,
        best_loss=1.5,
        last_loss=1.5,
        best_metrics={"exact_match": 0.5, "token_f1": 0.75, "contains": 0.625},
    )
    ranked = [RankedTrial(rank=1, trial=trial, why="")]

    def shown(width: int, label: str = "exact match") -> tuple[str, tuple[str, ...]]:
        console = Console(width=width, file=io.StringIO())
        table, left_out = trial_table(ranked, metric_label=label, width=width)
        console.print(table)
        return console.file.getvalue(), left_out  # type: ignore[attr-defined]

    wide, left_out = shown(120)
    assert not left_out
    assert wide.count("0.5 ") == 1
    assert all(text in wide for text in ("exact match", " loss", "1.5", "0.75", "0.625"))
    narrow, left_out = shown(48)
    assert set(left_out) == {"token f1", "contains"}
    assert "1.5" in narrow
    assert shown(120, label="validation loss")[0].count("loss") == 1


def test_an_interval_wraps_before_a_hyperparameter_is_hidden(tmp_path: Path) -> None:
    found = Estimate(value=0.05123, low=0.00888, high=0.2364, num_rows=20)
    trials = read_results(write_small_run(tmp_path / "run")[1].reader).ranked
    ranked = [
        replace(
            entry,
            trial=replace(entry.trial, parameters={"learning_rate": 10.0**-entry.trial.trial_id, "r": 4}),
            final_rows=20,
            final_value=found,
        )
        for entry in trials
    ]
    table, left_out = trial_table(ranked, metric_label="exact match", width=72)
    console = Console(width=72, file=io.StringIO())
    console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "learning_rate" not in left_out
    assert all(number in text for number in ("0.05123", "(0.00888", "0.236)"))
    assert max(map(len, text.splitlines())) <= 72


def test_a_narrow_table_keeps_what_is_searched_longest(tmp_path: Path) -> None:
    trials = read_results(write_small_run(tmp_path / "run")[1].reader).ranked
    ranked = [
        replace(entry, trial=replace(entry.trial, parameters={"r": 8 * n, "lora_alpha": 16 * n, "batch_size": n}))
        for n, entry in enumerate(trials, start=1)
    ]

    def hidden(width: int) -> list[str]:
        return list(trial_table(ranked, metric_label="loss", width=width, chosen=("r", "batch_size"))[1])

    found = [hidden(width) for width in range(90, 20, -1)]
    gone = list(dict.fromkeys(name for names in found for name in names))
    assert gone == ["place", "lora_alpha", "steps", "batch_size", "r"]
