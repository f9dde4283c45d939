"""How each outcome of a trial looks: one colour and one shape, so that neither alone has to be seen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from zlib import crc32

from cohort.runs.records import TrialRecord, TrialStatus
from cohort.tuning.early_exit import reason_of

__all__ = ["Outcome", "outcome_counts", "outcome_of", "outcome_styles"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One way a trial can stand or end.

    Attributes:
        name: CSS class suffix (``o-NAME``).
        label: In words.
        shape: Name of its mark (see :func:`cohort.runs.report.svg.mark`).
        colours: On light and on dark paper.
    """

    name: str
    label: str
    shape: str
    colours: tuple[str, str]


_COMPLETED = Outcome(name="completed", label="completed", shape="circle", colours=("#0072b2", "#4aa8e0"))
_FAILED = Outcome(name="failed", label="failed", shape="plus", colours=("#16191d", "#eceff3"))
_OPEN = Outcome(name="open", label="running, parked or waiting", shape="bar", colours=("#00815c", "#2fc093"))
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


def outcome_styles(trials: Iterable[TrialRecord]) -> str:
    """Return the style sheet of the outcomes that occur."""
    found = dict.fromkeys((_COMPLETED, _FAILED, _OPEN, *(outcome for outcome, _ in outcome_counts(trials))))
    light, dark = ("".join(f".o-{o.name}{{--tone:{o.colours[paper]}}}" for o in found) for paper in (0, 1))
    return f"{light}@media (prefers-color-scheme:dark){{{dark}}}\n"
