"""What a run says of its winner: numbers with rows and intervals, and plainly what is only noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cohort.core.events import Evaluated
from cohort.core.statistics.estimates import Estimate, RowValues
from cohort.core.statistics.row_estimates import difference, estimate
from cohort.runs.fact_groups import InputFacts, TaskFacts
from cohort.runs.results.comparison import Comparison, Contender
from cohort.runs.results.results import RunResults, read_results
from cohort.runs.results.results_table import results_json
from cohort.runs.results.verdicts import (
    comparison_lines,
    gain_text,
    is_worse,
    no_gain,
    training_value_text,
    verdicts,
)
from cohort.tuning.objective_metric import ObjectiveMetric
from cohort.tuning.trial_status import TrialStatus
from tests.runs.small_run import write_small_run
from tests.runs.synthetic_run import new_best

# hits of each row: the winner's, then those it is compared with
WINNER = (1.0,) * 18 + (0.0,) * 2
CLOSE = (0.0,) + (1.0,) * 17 + (0.0,) * 2
FAR = (0.0,) * 18 + (1.0,) + (0.0,)


def contender(trial_id: int | None, hits: tuple[float, ...]) -> Contender:
    """Return a contender whose loss on a row is 1, and 2 where it misses."""
    rows, losses = RowValues.of_scores(hits), RowValues.of_scores(tuple(2.0 - hit for hit in hits))
    won, lost = RowValues.of_scores(WINNER), RowValues.of_scores(tuple(2.0 - hit for hit in WINNER))
    minus = {} if hits is WINNER else {"loss": difference(lost, losses), "exact_match": difference(won, rows)}
    values = {"loss": estimate(losses), "exact_match": estimate(rows)}
    return Contender(trial_id=trial_id, step=None if trial_id is None else 4, values=values, winner_minus=minus)


def results_with(
    path: Path, *, base: tuple[float, ...], runner_up: tuple[float, ...], default_id: int | None, metric: str = "loss"
) -> RunResults:
    _, store, _ = write_small_run(path)
    finals = Comparison(
        num_rows=20,
        num_available=20,
        num_tokens=0,
        ranked=(contender(1, WINNER), contender(0, runner_up)),
        others=(contender(None, base),),
    )
    store.set_facts(
        finals=finals,
        best_trial_id=1,
        task=TaskFacts(default_trial_id=default_id),
        inputs=InputFacts(evaluation_rows=4),
    )
    results = read_results(store.reader)
    assert results.facts.finals == finals, "what was recorded is read as it was"
    store.close()
    return replace(results, metric=ObjectiveMetric(name=metric, maximize=metric != "loss"))


@pytest.mark.parametrize("metric", ["loss", "exact_match"])
def test_a_clear_winner_needs_no_warning(tmp_path: Path, metric: str) -> None:
    results = results_with(tmp_path / "run", base=FAR, runner_up=FAR, default_id=0, metric=metric)
    assert verdicts(results) == []
    lines = comparison_lines(results)
    assert list(lines) == ["best", "runner-up", "default", "base"]
    assert "trial 1, step 4" in lines["best"]
    assert all("all 20 validation rows" in line and "95 %: " in line for line in lines.values())
    # whichever way the metric goes, better is said as better
    assert all("the best is better by 0.85 (95 %: 0." in lines[name] for name in ("runner-up", "default", "base"))


@pytest.mark.parametrize("metric", ["loss", "exact_match"])
def test_noise_is_called_noise(tmp_path: Path, metric: str) -> None:
    results = results_with(tmp_path / "run", base=CLOSE, runner_up=CLOSE, default_id=0, metric=metric)
    assert verdicts(results) == [
        "nothing beats the base model: the best trial is within noise of it",
        "the best trial is within noise of the default configuration",
    ]
    assert "the best is within noise of it, better by 0.05 (95 %: -" in comparison_lines(results)["base"]


def test_a_base_model_that_is_better_and_other_trials_that_are_as_good(tmp_path: Path) -> None:
    results = results_with(tmp_path / "run", base=(1.0,) * 20, runner_up=CLOSE, default_id=1)
    worse = replace(contender(None, (1.0,) * 20), winner_minus={"loss": estimate(RowValues.of_scores((0.4, 0.5) * 10))})
    finals = results.facts.finals
    assert finals is not None
    results = replace(results, facts=replace(results.facts, finals=replace(finals, others=(worse,))))
    assert verdicts(results) == [
        "nothing beats the base model: the best trial is worse",
        "the default configuration is the best",
        "the best trial is within noise of trial 0",
    ]


def test_a_default_configuration_that_was_stopped_early_is_said_to_be(tmp_path: Path) -> None:
    results = results_with(tmp_path / "run", base=FAR, runner_up=FAR, default_id=0)
    (own,) = (entry for entry in results.ranked if entry.trial.trial_id == 0)
    for status, steps, said in (
        (TrialStatus.STOPPED, 6, "; it was stopped at step 6 of 120"),
        (TrialStatus.COMPLETED, 120, ""),
    ):
        trial = replace(own.trial, status=status, steps_done=steps, planned_steps=120)
        line = comparison_lines(replace(results, ranked=(replace(own, trial=trial),)))["default"]
        assert line.endswith(said)
        assert ("stopped" in line) == bool(said)


def test_a_default_configuration_that_is_better_is_named(tmp_path: Path) -> None:
    """It is compared with the winner, and cannot win where the search had ranked it below the finalists."""
    results = results_with(tmp_path / "run", base=FAR, runner_up=FAR, default_id=2)
    better = {"loss": estimate(RowValues.of_scores((0.4, 0.5) * 10))}
    finals = results.facts.finals
    assert finals is not None
    finals = replace(finals, others=(*finals.others, replace(contender(2, CLOSE), winner_minus=better)))
    results = replace(results, facts=replace(results.facts, finals=finals))
    assert verdicts(results) == ["the default configuration is better than the best trial"]
    assert "the best is worse by 0.45 (95 %: 0.4" in comparison_lines(results)["default"]


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.45, 0.3, 0.6, "better by 0.45 (95 %: 0.3 to 0.6)"),
        # an interval counts in the direction that its number is said in
        (-10.29, -10.68, -9.827, "worse by 10.29 (95 %: 9.827 to 10.68)"),
        (-0.02, -0.08, 0.04, "worse by 0.02 (95 %: -0.04 to 0.08)"),
        (0.0, -0.1, 0.1, "equal (95 %: -0.1 to 0.1)"),
        (-0.5, None, None, "worse by 0.5"),
    ],
)
def test_an_interval_has_the_direction_of_its_number(
    value: float, low: float | None, high: float | None, text: str
) -> None:
    gain = Estimate(value=value, low=low, high=high, num_rows=20)
    assert gain_text(gain) == text
    # whichever side is asked, the number lies within what is printed for it
    said = gain.negated if value < 0 else gain
    assert said.low is None or said.high is None or said.low <= abs(value) <= said.high


def test_json_has_the_comparison_and_its_verdicts(tmp_path: Path) -> None:
    plain = results_json(results_with(tmp_path / "run", base=FAR, runner_up=CLOSE, default_id=None))
    assert plain["finals"]["ranked"][0]["values"]["loss"]["num_rows"] == 20
    assert plain["verdicts"] == ["the best trial is within noise of trial 0"]
    first = plain["trials"][0]
    assert (first["trial"], first["final_rows"], first["eval_rows"]) == (1, 20, 4)
    assert first["final"]["loss_low"] < first["final"]["loss"] < first["final"]["loss_high"]


def test_without_a_comparison_a_share_still_has_its_rows_and_interval(tmp_path: Path) -> None:
    _, store, _ = write_small_run(tmp_path / "run")
    store.set_facts(inputs=InputFacts(evaluation_rows=4))
    results = read_results(store.reader)
    store.close()
    assert comparison_lines(results) == {}
    assert verdicts(results) == []
    assert training_value_text(results, 1.25) == "validation loss 1.25 (4 validation rows)"
    shares = replace(results, metric=ObjectiveMetric(name="exact_match", maximize=True))
    assert training_value_text(shares, 0.5) == "exact match 0.5 (95 %: 0.15 to 0.85, 4 validation rows)"


def results_without_finals(
    path: Path, *, losses: tuple[float, ...], base: tuple[float, ...] | None = (3.0,) * 12
) -> RunResults:
    """Return what a run comes to that ended without a comparison, its best trial with these losses by row."""
    _, store, _ = write_small_run(path)
    mean = sum(losses) / len(losses)
    better = Evaluated(trial_id=1, step=2, validation_loss=mean, row_values={"loss": losses})
    store.append([better], [new_best(better)])
    store.set_facts(best_trial_id=1, inputs=InputFacts(evaluation_rows=len(losses)))
    if base is not None:
        store.set_facts(base_rows={"loss": base})
    results = read_results(store.reader)
    store.close()
    return results


@pytest.mark.parametrize(
    ("losses", "worse", "said"),
    [
        ((4.0, 5.0) * 6, True, "nothing beats the base model: the best trial is worse in its evaluations"),
        ((1.0, 7.5) * 6, False, "nothing beats the base model in the evaluations during training on 12 rows, which"),
        ((4.0, 5.0) * 2, False, "nothing beats the base model in the evaluations during training on 4 rows, which"),
        ((1.0, 2.0) * 6, False, None),
    ],
)
def test_a_run_without_a_comparison_is_judged_by_its_evaluations(
    tmp_path: Path, losses: tuple[float, ...], worse: bool, said: str | None
) -> None:
    results = results_without_finals(tmp_path / "run", losses=losses, base=(3.0,) * len(losses))
    assert is_worse(results) == worse
    found = no_gain(results)
    assert found is None if said is None else found is not None and found.startswith(said)
    assert verdicts(results) == results_json(results)["verdicts"] == ([] if found is None else [found])


def test_a_run_that_recorded_no_rows_claims_nothing(tmp_path: Path) -> None:
    results = results_without_finals(tmp_path / "run", losses=(4.0,) * 12, base=None)
    assert (is_worse(results), verdicts(results)) == (False, [])
    assert "verdicts" not in results_json(results)
