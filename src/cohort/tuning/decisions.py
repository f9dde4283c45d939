"""A decision about a trial, its reason, and every number that led to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cohort.core.errors import RunStateError

__all__ = ["COMPLETED", "FAILED", "IMPROVED", "NON_FINITE", "Decision", "DecisionKind", "Reason", "require_same"]


class DecisionKind(StrEnum):
    """What the engine has to do now."""

    NEW_BEST = "new_best"
    """Save the trial's checkpoint: no earlier one of this trial is better by the task's metric."""
    PARK = "park"
    """Take the trial out of its slot with all its state and wait for a verdict."""
    KEEP = "keep"
    """The trial goes on; a parked one may become resident again."""
    STOP = "stop"
    """The trial ends early; its best checkpoint still competes for the task's result."""
    FINISH = "finish"
    """The trial has done all its planned steps."""
    RESUME = "resume"
    """A trial that was stopped goes on, because a person said so."""
    PROTECT = "protect"
    """No exit rule may stop the trial from now on, because a person said so."""
    ADD = "add"
    """The trial is new: a person added it while others trained."""


class Reason(str):
    """Why a decision was taken.

    It equals its text and is stored as it, so records of other versions, or of a rule that is no longer installed, can
    be read and compared. What goes with the text is for people.

    Attributes:
        label: How the report names trials that ended for this reason; the text itself unless given.
        sentence: What happened, for the docs.
        colours: The colours of its mark in the report, on light and on dark paper; by default the report chooses.
        shape: Its mark: circle, square, diamond, hexagon, up, down, left, right, cross, plus or bar; if empty, the
            report chooses.
        is_comparison: Whether the trial was stopped because others were better. Its adapter is then not written out,
            and a sampler learns that the trial lost a comparison.
    """

    label: str
    sentence: str
    colours: tuple[str, str] | None
    shape: str
    is_comparison: bool

    def __new__(
        cls,
        text: str,
        *,
        label: str = "",
        sentence: str = "",
        colours: tuple[str, str] | None = None,
        shape: str = "",
        is_comparison: bool = False,
    ) -> Reason:
        reason = super().__new__(cls, text)
        reason.label, reason.sentence = label or text, sentence
        reason.colours, reason.shape, reason.is_comparison = colours, shape, is_comparison
        return reason


IMPROVED = Reason("improved", sentence="The trial's best value so far.")
FAILED = Reason("failed", sentence="The trial could not go on because of an error.")
NON_FINITE = Reason(
    "non-finite",
    label="non-finite loss",
    sentence="A loss or gradient norm was NaN or infinite.",
    colours=("#b0568c", "#dd8fbc"),
    shape="cross",
)
COMPLETED = Reason("completed", sentence="The trial did all its planned steps.")


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One decision about one trial.

    Attributes:
        trial_id: The trial it is about, which need not be the trial whose event led to it.
        step: Optimizer steps the trial had completed.
        rule: Name of the rule that decided; ``study`` for a new best, a finish or a failure, ``user`` for a person.
        numbers: Everything compared: losses, slopes, gap, counters, thresholds, rank, share. May hold NaN and Inf.
        message: The error of a failed trial; who decided and when, if a person did; else empty.
    """

    trial_id: int
    step: int
    kind: DecisionKind
    reason: Reason
    rule: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; NaN and Inf, which JSON lacks, become strings."""
        # Written to run.db and compared on resume: JSON has no NaN, and a NaN is not equal to itself.
        numbers = {name: value if math.isfinite(value) else str(value) for name, value in self.numbers.items()}
        return {
            "trial_id": self.trial_id,
            "step": self.step,
            "kind": self.kind.value,
            "reason": str(self.reason),
            "rule": self.rule,
            "numbers": numbers,
            "message": self.message,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Decision:
        """Return the decision that :meth:`to_json` wrote, numbers bit for bit."""
        return cls(
            trial_id=int(record["trial_id"]),
            step=int(record["step"]),
            kind=DecisionKind(record["kind"]),
            reason=Reason(record["reason"]),
            rule=str(record["rule"]),
            numbers={name: float(value) for name, value in record["numbers"].items()},
            message=str(record.get("message", "")),
        )


def require_same(replayed: Sequence[Decision], recorded: Sequence[Decision]) -> None:
    """Check that a replay has led to each recorded decision; it may have led further.

    Raises:
        RunStateError: it has not.
    """
    for index, old in enumerate(recorded):
        new = replayed[index] if index < len(replayed) else None
        # Compared as JSON: NaN in the numbers is equal to itself there.
        if new is None or new.to_json() != old.to_json():
            raise RunStateError(
                f"decision {index} was recorded as {old} but the events lead to {new}; "
                "resume with the settings and the version that began the run"
            )
