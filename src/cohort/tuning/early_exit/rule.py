"""The interface of all early-exit rules: what a rule is shown and what it may answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from cohort.core.events import Evaluated, StepDone
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import DecisionKind, Reason
from cohort.tuning.trajectory import Trajectory

__all__ = ["Observation", "Rule", "Verdict"]


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One event of a running trial and the trial's curves with that event taken in.

    ``trajectory`` belongs to the study: rules read it and keep no reference.
    """

    candidate: Candidate
    event: StepDone | Evaluated
    trajectory: Trajectory

    @property
    def trial_id(self) -> int:
        """The trial."""
        return self.candidate.trial_id

    @property
    def is_last_step(self) -> bool:
        """Whether the trial has done all its planned steps."""
        return self.event.step == self.candidate.planned_steps


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A rule's word on a trial: PARK, KEEP or STOP, why, and every number that was compared."""

    trial_id: int
    kind: DecisionKind
    reason: Reason
    numbers: Mapping[str, float] = field(default_factory=dict)


class Rule(ABC):
    """Decides from events which trials end early. One instance serves all trials of one study.

    A rule is a pure function of the events it was shown, in their order: no clock, no randomness, no I/O, so that
    showing it a log again rebuilds its state. Counters are kept by trial id.
    """

    name: ClassVar[str]
    """The rule's name in the record of decisions."""

    compares_trials: ClassVar[bool] = False
    """Whether a verdict depends on other trials. Such rules are not asked about a trial's last step: a trial that has
    finished has nothing left to save."""

    def add(self, candidate: Candidate) -> None:  # noqa: B027
        """Learn of a trial before its first event."""

    @abstractmethod
    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        """Take in one event; return verdicts on its trial and, for rules that compare, on others."""

    def certain_to_stop(self) -> frozenset[int]:
        """Return parked trials that the rule will stop whatever the others do; their states are of no use.

        Holds as long as no trial is added.
        """
        return frozenset()

    def leave(self, trial_id: int) -> tuple[Verdict, ...]:  # noqa: ARG002
        """Learn that a trial ended (stopped, failed, finished), by whomever; may settle what waited for it."""
        return ()
