"""Every reason a trial can end for has a colour and a mark, also one whose rule is not installed here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort.report.drawings.svg import mark
from cohort.report.outcomes import outcome_counts, outcome_of, outcome_styles
from cohort.runs.reader import RunReader
from cohort.runs.records import TrialRecord
from cohort.tuning.early_exit import reasons
from cohort.tuning.trial_status import TrialStatus
from tests.runs.synthetic_run import SyntheticRun, write_synthetic_run


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> TrialRecord:
    path = write_synthetic_run(tmp_path_factory.mktemp("run") / "run.db", SyntheticRun(trials=2, steps=20))
    with RunReader.open(path) as reader:
        return replace(reader.trials()[0], status=TrialStatus.STOPPED, reason="diverging")


def test_a_reason_brings_its_label_and_look(stopped: TrialRecord) -> None:
    outcome = outcome_of(replace(stopped, reason="non-finite"))
    assert (outcome.name, outcome.label, outcome.shape) == ("non-finite", "non-finite loss", "cross")
    assert outcome.colours[0] == "#b0568c"


def test_all_outcomes_can_be_told_apart(stopped: TrialRecord) -> None:
    ends = [outcome_of(replace(stopped, reason=str(reason))) for reason in reasons() if reason.colours is not None]
    ends += [outcome_of(replace(stopped, status=status)) for status in (TrialStatus.COMPLETED, TrialStatus.FAILED)]
    assert len({outcome.shape for outcome in ends}) == len({outcome.colours for outcome in ends}) == len(ends)
    assert all(mark(outcome.shape, 0, 0, classes="") for outcome in ends)


def test_a_reason_of_a_rule_that_is_gone_looks_the_same_each_time(stopped: TrialRecord) -> None:
    gone = outcome_of(replace(stopped, reason="Ran <out> of luck"))
    assert (gone.name, gone.label) == ("ran-out-of-luck", "Ran <out> of luck")
    assert gone == outcome_of(replace(stopped, trial_id=1, reason="Ran <out> of luck"))
    assert mark(gone.shape, 0, 0, classes="")


def test_counts_come_in_the_order_of_the_legend_and_styles_are_of_what_occurs(stopped: TrialRecord) -> None:
    trials = [
        replace(stopped, status=TrialStatus.FAILED),
        replace(stopped, reason="patience"),
        stopped,
        replace(stopped, reason="patience"),
        replace(stopped, status=TrialStatus.COMPLETED),
    ]
    labels = [(outcome.label, count) for outcome, count in outcome_counts(trials)]
    assert labels == [("completed", 1), ("diverging", 1), ("out of patience", 2), ("failed", 1)]
    styles = outcome_styles(trials)
    assert ".o-patience{--tone:#2f8fc4}" in styles
    assert ".o-patience{--tone:#8fd0f5}" in styles.partition("dark")[2]
    assert "o-overfitting" not in styles
