"""What a person does to a trial while it trains: stop it, resume it, protect it from exit rules, add a new one.

Each becomes a decision whose rule is ``user``. A study that replays its log does the same again at the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cohort.tuning.decisions import FAILED, NON_FINITE, Decision, DecisionKind, Reason

__all__ = [
    "ADDED_BY_USER",
    "BY_USER",
    "FROM_STEP",
    "FROM_TRIAL",
    "KEPT_BY_USER",
    "RESUMED_BY_USER",
    "STOPPED_BY_USER",
    "USER",
    "Intervention",
    "can_be_resumed",
    "intervention_of",
]

USER = "user"
"""The ``rule`` of decisions that a person took."""

FROM_TRIAL, FROM_STEP = "from_trial", "from_step"
"""Among the numbers of ADD: the trial whose weights the new one begins with, and the step of that checkpoint."""

STOPPED_BY_USER = Reason(
    "stopped by user",
    sentence="A person stopped the trial.",
    colours=("#5f6b7a", "#a9b4c2"),
    shape="bar",
)
RESUMED_BY_USER = Reason("resumed by user", sentence="A person resumed a trial that had been stopped.")
KEPT_BY_USER = Reason("kept by user", sentence="A person decided that no exit rule may stop the trial.")
ADDED_BY_USER = Reason("added by user", sentence="A person added the trial while others trained.")

BY_USER: Mapping[DecisionKind, Reason] = {
    DecisionKind.STOP: STOPPED_BY_USER,
    DecisionKind.RESUME: RESUMED_BY_USER,
    DecisionKind.PROTECT: KEPT_BY_USER,
    DecisionKind.ADD: ADDED_BY_USER,
}
"""What a person can decide, and the reason that is recorded for it."""


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """One thing that a person does to one trial.

    Attributes:
        kind: STOP, RESUME, PROTECT or ADD.
        message: Who did it and when.
        numbers: What else belongs to it: for a clone, the trial and the step that its weights come from.
    """

    trial_id: int
    kind: DecisionKind
    message: str
    numbers: Mapping[str, float] = field(default_factory=dict)


def can_be_resumed(reason: Reason) -> bool:
    """Return whether a trial that was stopped for this reason can go on: its weights are finite."""
    return reason not in (FAILED, NON_FINITE)


def intervention_of(decision: Decision) -> Intervention | None:
    """Return the intervention that a recorded decision came from; None if a rule or the study took it."""
    if decision.rule != USER:
        return None
    # the study numbers the decisions of people itself
    numbers = {name: value for name, value in decision.numbers.items() if name != "number"}
    return Intervention(trial_id=decision.trial_id, kind=decision.kind, message=decision.message, numbers=numbers)
