"""The interface of all early-exit rules: what a rule sees, what it may answer, and how a task file chooses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

from cohort.core.events import Evaluated, StepDone
from cohort.core.setting_fields import check_settings, number, share, whole
from cohort.core.source_location import Place
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import DecisionKind, Reason
from cohort.tuning.early_exit.separation import Standing
from cohort.tuning.objective_metric import LOSS
from cohort.tuning.trajectory import Trajectory

__all__ = [
    "RUNG_REACHED",
    "SELECTED",
    "UNDECIDED",
    "UNDERPERFORMING",
    "COMPARISON_KEYS",
    "CommonSettings",
    "ExitRule",
    "Observation",
    "Rule",
    "RuleSettings",
    "Verdict",
]

# What rules that compare trials have to say is the same for all of them, and is one outcome in the report.
RUNG_REACHED = Reason("rung reached", sentence="The trial waits for the others that are compared here.")
SELECTED = Reason("selected", sentence="The trial is among the best that were compared, and continues.")
UNDECIDED = Reason(
    "undecided",
    sentence="Too many of the compared trials were better, but the rows do not tell it from the best; it continues.",
)
UNDERPERFORMING = Reason(
    "underperforming",
    sentence="Too many of the compared trials were better.",
    colours=("#8b929c", "#7d8591"),
    shape="down",
    is_comparison=True,
)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One event of a running trial and the trial's curves with that event taken in.

    ``trajectory`` belongs to the study: rules read it and keep no reference.

    Attributes:
        compared_by: What the study says an evaluation is compared by; None: its validation loss.
    """

    candidate: Candidate
    event: StepDone | Evaluated
    trajectory: Trajectory
    compared_by: Standing | None = None

    @property
    def trial_id(self) -> int:
        return self.candidate.trial_id

    @property
    def is_last_step(self) -> bool:
        return self.event.step == self.candidate.planned_steps

    @property
    def standing(self) -> Standing:
        """What the trial is compared with others by; only evaluations have one."""
        assert isinstance(self.event, Evaluated), "a step alone is nothing to compare"
        return self.compared_by or Standing.of(self.event, metric=LOSS)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A rule's answer about a trial: PARK, KEEP or STOP, why, and every number that was compared."""

    trial_id: int
    kind: DecisionKind
    reason: Reason
    numbers: Mapping[str, float] = field(default_factory=dict)


class Rule(ABC):
    """Decides from events which trials end early. One instance serves all trials of one study.

    A rule is a pure function of the events it has seen, in their order: no clock, no randomness, no I/O, so that
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

    def compares_again(self) -> bool:
        """Return whether a verdict on a trial may still depend on others, as long as no trial is added."""
        return self.compares_trials

    is_final: ClassVar[bool] = False
    """Whether it also ends trials that a person protects, since nothing is left of them to train."""

    # Not abstract: only rules that park trials can know this, and only they wait for others.
    def certain_to_stop(self) -> frozenset[int]:
        """Return parked trials that the rule will stop whatever the others do; their states are no longer needed.

        Holds as long as no trial is added.
        """
        return frozenset()

    def leave(self, trial_id: int) -> tuple[Verdict, ...]:  # noqa: ARG002
        """Learn that a trial ended (stopped, failed, finished), for any reason; may settle what waited for it."""
        return ()


@dataclass(frozen=True, kw_only=True)
class RuleSettings:
    """Base of every rule's settings, and the settings of a rule that has none: what a rule reads, it declares here.

    A subclass is a frozen keyword-only dataclass whose fields are made by :mod:`cohort.core.setting_fields`; each is a
    key of ``early_exit`` in the task file. Two rules may share a key if they declare it in a common base.
    """

    def __post_init__(self) -> None:
        check_settings(self, where=Place(key=("early_exit",)))

    def unread(self) -> Mapping[str, str]:
        """Return the keys that have no effect as its own stand, each with the setting that takes it away."""
        return {}


@dataclass(frozen=True, kw_only=True)
class CommonSettings(RuleSettings):
    """The settings that all rules share.

    Attributes:
        warmup_fraction: Length of warm-up in shares of the planned steps; also the first rung of halving and ASHA, and
            where the median rule begins.
        ema_weight: Weight of the newest loss in the smoothed training loss (a; ours, the paper gives none).
        risk: A comparison ends a trial only if the bootstrap over the evaluation rows gives it at most this chance of
            being better than the best by more than the tolerance. 0.025 asks for one end of a 95 % interval; 1 compares
            ranks alone.
        tolerance: How much better than the best, as a share of its value, a trial may be that a comparison ends. Rows
            seldom tell trials apart that are equally good, and training all of them gains next to nothing.
        compare_after_steps: Optimizer steps that the shortest trial has to do before trials are compared; the others
            have done the same share of theirs.
    """

    warmup_fraction: float = share(0.05, "warm-up in planned steps (not the learning rate's warm-up)")
    ema_weight: float = share(0.1, "weight of the newest loss in the smoothed training loss")
    risk: float = share(
        0.025, "largest chance of being as good as the best at which a comparison ends a trial; 1: by rank"
    )
    tolerance: float = number(0.01, "how much better than the best a trial may be that a comparison ends", below=1)
    compare_after_steps: int = whole(4, "steps that the shortest trial does before trials are compared")


COMPARISON_KEYS = ("risk", "tolerance", "compare_after_steps")
"""Keys of the common settings that a rule has no use for if it judges each trial alone."""


@dataclass(frozen=True, kw_only=True)
class ExitRule:
    """One choice of ``early_exit.rule``. A module of this folder offers it as ``EXIT_RULE``.

    Another package offers it by an entry point of the group ``cohort.exit_rules``, named as the rule is.

    Attributes:
        name: The word in the task file.
        summary: Which trials it ends, for the schema and the docs.
        settings: The class of its settings.
        comparison_keys: Which of :data:`COMPARISON_KEYS` it reads; none where it judges each trial alone.
        build: Returns fresh rules for one study, in the order in which they are asked.
        reasons: Why it parks, keeps or stops trials.
        kept_share: Returns the share of the work after warm-up that it leaves of a number of trials, as far as that is
            known beforehand; for predictions of cost and time. 1.0 predicts no early exit. The number is None where
            trials are many enough for every share.
        kept_at: Returns the share of the trials that reach a share of their training, likewise; by default all reach
            the warm-up's end and ``kept_share`` of them what comes later. Its last argument is as that of
            ``milestones``.
        milestones: Returns the shares of training, between the warm-up's end and the last step, at which it needs an
            evaluation. The others are left out where evaluating would cost too much. None: it needs them all. Its last
            argument is the share before which nothing is compared, 0 where that is not later than the warm-up's end:
            then that share is one of them, and the warm-up's end is not evaluated for the rule.
    """

    name: str
    summary: str
    # Any: each rule's functions take its own settings class, which only the registry's caller knows to belong to it
    build: Callable[[Any, CommonSettings], tuple[Rule, ...]]
    settings: type[RuleSettings] = RuleSettings
    comparison_keys: tuple[str, ...] = COMPARISON_KEYS
    reasons: tuple[Reason, ...] = ()
    kept_share: Callable[[Any, CommonSettings, int | None], float] = lambda settings, common, num_trials: 1.0  # noqa: ARG005
    kept_at: Callable[[Any, CommonSettings, float, int | None, Fraction], float] | None = None
    milestones: Callable[[Any, CommonSettings, Fraction], tuple[Fraction, ...]] | None = None
