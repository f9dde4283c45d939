"""How each outcome of a trial looks: one colour and one shape, so that neither alone has to be seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from cohort.runs.records import TrialRecord, TrialStatus
from cohort.tuning.decisions import Reason

__all__ = ["OUTCOMES", "Outcome", "outcome_counts", "outcome_of"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One way a trial can stand or end.

    Attributes:
        name: CSS class suffix (``o-NAME``); the colours are in report.css.
        label: In words.
        shape: Name of its mark (see :func:`cohort.runs.report.svg.mark`).
    """

    name: str
    label: str
    shape: str


OUTCOMES: tuple[Outcome, ...] = (
    Outcome(name="completed", label="completed", shape="circle"),
    Outcome(name="overfitting", label="overfitting", shape="diamond"),
    Outcome(name="diverging", label="diverging", shape="up"),
    Outcome(name="non-finite", label="non-finite loss", shape="cross"),
    Outcome(name="patience", label="out of patience", shape="square"),
    Outcome(name="underperforming", label="underperforming", shape="down"),
    Outcome(name="failed", label="failed", shape="plus"),
    Outcome(name="open", label="running, parked or waiting", shape="bar"),
)
_BY_NAME = {outcome.name: outcome for outcome in OUTCOMES}
_OF_REASON = {
    Reason.OVERFITTING.value: "overfitting",
    Reason.DIVERGING.value: "diverging",
    Reason.NON_FINITE.value: "non-finite",
    Reason.PATIENCE.value: "patience",
}


def outcome_of(trial: TrialRecord) -> Outcome:
    """Return how ``trial`` stands; a stop for a reason of a rule that ranks trials is "underperforming"."""
    if trial.status is TrialStatus.COMPLETED:
        return _BY_NAME["completed"]
    if trial.status is TrialStatus.FAILED:
        return _BY_NAME["failed"]
    if trial.status is TrialStatus.STOPPED:
        return _BY_NAME[_OF_REASON.get(trial.reason, "underperforming")]
    return _BY_NAME["open"]


def outcome_counts(trials: Iterable[TrialRecord]) -> list[tuple[Outcome, int]]:
    """Return the outcomes that occur, with how often, in the order of the legend."""
    counts = Counter(outcome_of(trial).name for trial in trials)
    return [(outcome, counts[outcome.name]) for outcome in OUTCOMES if counts[outcome.name]]
