"""The tables of the report: cells that sort, decisions without new bests, and the price by hand."""

from __future__ import annotations

from cohort.report.page_tables import compute_rows, data_notes, decision_rows, trial_table
from cohort.runs.fact_groups import InputFacts, TaskFacts
from cohort.runs.facts import RunFacts
from cohort.runs.records import DataProblem, LoggedDecision
from cohort.runs.results.results import read_results
from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.interventions import STOPPED_BY_USER, USER
from tests.runs.small_run import SmallRun


def test_the_table_of_trials_sorts_by_numbers_and_leaves_out_what_does_not_exist(run: SmallRun) -> None:
    table = trial_table(read_results(run[1].reader))
    labels = [column["label"] for column in table["columns"]]
    assert labels[:2] == ["place", "trial"]
    assert labels[-1] == "outcome"
    loss = labels.index("validation loss")
    first, *_, last = table["rows"]
    assert (first["trial_id"], first["is_best"], first["cells"][loss]["key"]) == (1, True, 1.25)
    assert (last["trial_id"], last["is_best"], last["cells"][loss]["shown"]) == (3, False, "")
    assert first["cells"][-1]["shown"] == "underperforming"
    assert first["summary"].startswith("Trial 1, place 1: validation loss 1.25 at step 1")


def test_new_bests_are_counted_and_not_listed(run: SmallRun) -> None:
    rows, note = decision_rows(run[1].reader.log.decisions())
    assert "new_best" not in {row["kind"] for row in rows}
    assert "1 stopped as underperforming" in note
    assert "new bests of a trial (not listed)" in note
    assert decision_rows([]) == ([], "No trial was stopped.")


def test_compute_is_compared_with_the_full_grid(run: SmallRun) -> None:
    rows = {row["label"]: row for row in compute_rows(read_results(run[1].reader))}
    assert rows["tokens trained"] == {"label": "tokens trained", "spent": "550", "planned": "1,400", "share": "39.3 %"}
    assert rows["tokens evaluated"]["planned"] == "–"


def test_data_notes_are_counts_in_words_and_problems() -> None:
    problem = DataProblem(where="a:3", found="1 row", allowed="none", hint="Remove it.")
    inputs = InputFacts(data_counts={"too_long": 1200}, data_problems=(problem,), target_modules=("a.q", "b.q"))
    notes = data_notes(RunFacts(inputs=inputs, task=TaskFacts(document={"dataset": {"max_length": 64}})))
    # counts have a place of their own
    assert (notes["counts"], notes["settings"]) == ([("too long", "1,200")], [("max length", "64")])
    assert notes["problems"] == (problem,)
    assert notes["evaluation"] == [("metric", "loss"), ("adapted", "2 linears: q")]
    assert data_notes(RunFacts())["problems"] == ()


def test_a_hyperparameter_that_is_the_same_in_all_trials_needs_no_column(run: SmallRun) -> None:
    table = trial_table(read_results(run[1].reader))
    assert "r" not in [column["label"] for column in table["columns"]]
    assert "r 24" in table["same"]


def test_what_a_person_decided_is_listed_with_who_and_when() -> None:
    message = "ada on host, 2026-01-02 10:00:00.000 UTC"
    decision = Decision(
        trial_id=7,
        step=40,
        kind=DecisionKind.STOP,
        reason=STOPPED_BY_USER,
        rule=USER,
        numbers={"number": 1},
        message=message,
    )
    (row,), note = decision_rows([LoggedDecision(position=1, seconds=3.0, decision=decision)])
    assert (row["rule"], row["kind"], row["reason"]) == ("user", "stop", "stopped by user")
    assert row["numbers"] == f"{message}; number 1"
    assert note == "1 stopped by user."
