"""How each outcome of a trial looks: one colour and one shape, so that neither alone has to be seen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from zlib import crc32

from cohort.report.drawings.svg import mark
from cohort.runs.records import TrialRecord
from cohort.tuning.early_exit import reason_of
from cohort.tuning.trial_status import TrialStatus

__all__ = ["Outcome", "outcome_counts", "outcome_key", "outcome_of", "outcome_styles", "trial_group"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One way a trial can stand or end.

    Attributes:
        name: CSS class suffix (``o-NAME``).
        label: In words.
        shape: Name of its mark (see :func:`cohort.report.drawings.svg.mark`).
        colours: On light and on dark paper.
    """

    name: str
    label: str
    shape: str
    colours: tuple[str, str]


# these belong to no exit rule; what a rule's stops look like is declared with the rule's reasons
_COMPLETED = Outcome(name="completed", label="completed", shape="circle", colours=("#0072b2", "#4aa8e0"))
_FAILED = Outcome(name="failed", label="failed", shape="plus", colours=("#16191d", "#eceff3"))
_OPEN = Outcome(name="open", label="running, paused or waiting", shape="bar", colours=("#00815c", "#2fc093"))
# for rules of other packages that leave their look to us: colours that no outcome of ours has
_FREE_COLOURS = (("#6b4fb3", "#b3a0ee"), ("#7a5c2e", "#c9a873"), ("#3f6f21", "#9ccc7b"), ("#9c2f45", "#e58a9c"))
_FREE_SHAPES = ("square", "diamond", "up", "down")


def outcome_of(trial: TrialRecord) -> Outcome:
    """Return how ``trial`` stands."""
    if trial.status is TrialStatus.COMPLETED:
        return _COMPLETED
    if trial.status is TrialStatus.FAILED:
        return _FAILED
    return _of_reason(trial.reason) if trial.status is TrialStatus.STOPPED else _OPEN


def trial_group(trial: TrialRecord, content: str, *, best_id: int | None) -> str:
    """Return what is drawn of a trial as one group: in its outcome's colour, and found by the trial's number."""
    best = " best" if trial.trial_id == best_id else ""
    return f'<g class="trial o-{outcome_of(trial).name}{best}" data-trial="{trial.trial_id}">{content}</g>'


@cache
def _of_reason(text: str) -> Outcome:
    reason = reason_of(text)
    # by the text alone, so that a rule's trials look alike in all reports
    free = crc32(text.encode())
    return Outcome(
        name=re.sub(r"[^a-z0-9]+", "-", text.lower()),
        label=reason.label,
        shape=reason.shape or _FREE_SHAPES[free % len(_FREE_SHAPES)],
        colours=reason.colours or _FREE_COLOURS[free // len(_FREE_SHAPES) % len(_FREE_COLOURS)],
    )


def outcome_counts(trials: Iterable[TrialRecord]) -> list[tuple[Outcome, int]]:
    """Return the outcomes that occur, with how often: completed, then why trials ended early, failed, open."""
    counts = Counter(outcome_of(trial) for trial in trials)
    early = sorted(counts.keys() - {_COMPLETED, _FAILED, _OPEN}, key=lambda outcome: outcome.name)
    return [(outcome, counts[outcome]) for outcome in (_COMPLETED, *early, _FAILED, _OPEN) if counts[outcome]]


def outcome_key(trials: Sequence[TrialRecord], *, best: TrialRecord | None) -> list[dict[str, Any]]:
    """Return the outcomes that occur, with their marks, for the key above the curves; first the best trial's star."""
    shown = [(outcome.name, outcome.label, count, outcome.shape) for outcome, count in outcome_counts(trials)]
    if best is not None:
        shown.insert(0, (_COMPLETED.name, "best trial", 0, "star"))
    return [
        {
            "name": name,
            "label": label,
            "count": count,
            "is_best": shape == "star",
            "mark": mark(shape, 0, 0, classes=""),
        }
        for name, label, count, shape in shown
    ]


def outcome_styles(trials: Iterable[TrialRecord]) -> str:
    """Return the style sheet of the outcomes that occur."""
    # the three are always there: the best trial's star has the colour of a completed one
    found = dict.fromkeys((_COMPLETED, _FAILED, _OPEN, *(outcome for outcome, _ in outcome_counts(trials))))
    light, dark = ("".join(f".o-{o.name}{{--tone:{o.colours[paper]}}}" for o in found) for paper in (0, 1))
    return f"{light}@media (prefers-color-scheme:dark){{{dark}}}\n"
