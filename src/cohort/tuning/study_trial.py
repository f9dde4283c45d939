"""One trial of a study: its curves, what it may become, the events it may send, and its best checkpoint.

Nothing here knows of other trials; the study asks the exit rules to compare them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cohort.core.errors import CohortError
from cohort.core.events import Evaluated, StepDone
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import IMPROVED, Decision, DecisionKind, Reason
from cohort.tuning.objective_metric import ObjectiveMetric
from cohort.tuning.trajectory import Trajectory
from cohort.tuning.trial_status import TrialStatus, may_become

__all__ = ["BestCheckpoint", "StudyError", "StudyTrial"]


class StudyError(CohortError):
    """The study received an impossible event: a bug of the caller or a damaged log."""


@dataclass(frozen=True, kw_only=True)
class BestCheckpoint:
    """The best checkpoint: its trial, the steps it had done, the objective metric and the validation loss there."""

    trial_id: int
    step: int
    value: float
    validation_loss: float

    def order(self, metric: ObjectiveMetric) -> tuple[float, ...]:
        """Return its sort key among checkpoints (:meth:`ObjectiveMetric.order`)."""
        return metric.order(self.value, validation_loss=self.validation_loss, step=self.step, trial_id=self.trial_id)


@dataclass(kw_only=True)
class StudyTrial:
    """A trial while a process trains its task: the study makes it of a candidate and is the only one to change it.

    Attributes:
        trajectory: Its curves so far.
        awaits_verdict: It is parked until a rule has judged it; a parked trial without it may go on when there is room.
        best: Its best evaluation by the objective metric; None before the first that measured it.
        reason: Why it ended; None while it has not.
        is_protected: A person decided that no exit rule may stop it.
        is_ranked: False once it has left the comparisons, for whatever reason: rules are not asked about it any more.
    """

    candidate: Candidate
    trajectory: Trajectory
    status: TrialStatus = TrialStatus.WAITING
    awaits_verdict: bool = False
    best: BestCheckpoint | None = None
    reason: Reason | None = None
    is_protected: bool = False
    is_ranked: bool = True

    @property
    def trial_id(self) -> int:
        return self.candidate.trial_id

    @property
    def may_start(self) -> bool:
        """Whether it is out of a slot and may go into one."""
        return self.status in (TrialStatus.WAITING, TrialStatus.PARKED) and not self.awaits_verdict

    @property
    def next_evaluation(self) -> int | None:
        """The step after which it is evaluated next (now, if it has done them); None after the last."""
        if self.status.is_final:
            return None
        done = self.trajectory.last_evaluated_step
        return next((step for step in self.candidate.evaluation_steps if step > done), None)

    def move(self, status: TrialStatus, *, awaits_verdict: bool = False) -> None:
        """Give it another status.

        Raises:
            StudyError: it cannot become that from what it is.
        """
        legal = may_become(self.status)
        # A parked trial is released by its verdict before it runs, or two verdicts could disagree.
        if self.awaits_verdict:
            legal -= {TrialStatus.RUNNING}
        if status not in legal:
            raise StudyError(
                f"trial {self.trial_id} is {self.status} and cannot become {status}; "
                f"it can become {', '.join(sorted(legal)) or 'nothing else'}"
            )
        self.status, self.awaits_verdict = status, awaits_verdict

    def take_in(self, event: StepDone | Evaluated) -> bool:
        """Add an event to the curves; return False for one that was seen before.

        Raises:
            StudyError: the trial does not run, a step was skipped, or an evaluation came at a step that was not done
                or not planned.
        """
        trajectory = self.trajectory
        is_step = isinstance(event, StepDone)
        # A resumed executor repeats the steps since its checkpoint.
        if event.step <= (trajectory.num_steps if is_step else trajectory.last_evaluated_step):
            return False
        name = f"trial {self.trial_id}"
        if self.status is not TrialStatus.RUNNING:
            raise StudyError(f"{name} is {self.status} but sent step {event.step}; start() it first")
        if isinstance(event, StepDone):
            due = self.next_evaluation
            if event.step != trajectory.num_steps + 1:
                raise StudyError(f"{name} went from step {trajectory.num_steps} to {event.step}; events are missing")
            if due is None or event.step > due:
                raise StudyError(f"{name} went on to step {event.step} without its evaluation after step {due}")
            trajectory.add_step(event.loss, num_tokens=event.num_tokens)
        else:
            if event.step != trajectory.num_steps or event.step not in self.candidate.evaluation_steps:
                raise StudyError(
                    f"{name} was evaluated after step {event.step}; it has done {trajectory.num_steps} and is "
                    f"evaluated after {self.candidate.evaluation_steps}"
                )
            trajectory.add_evaluation(event.validation_loss, num_tokens=event.num_tokens)
        return True

    def update_best(self, event: Evaluated, *, metric: ObjectiveMetric) -> Decision | None:
        """Compare an evaluation with the best so far; return the decision if it is better."""
        value = metric.competing_value(event.validation_loss, event.metrics)
        # not measured at this evaluation, or not finite: it cannot win
        if value is None:
            return None
        best = self.best
        new = BestCheckpoint(
            trial_id=event.trial_id, step=event.step, value=value, validation_loss=event.validation_loss
        )
        if best is not None and new.order(metric) >= best.order(metric):
            return None
        self.best = new
        numbers = {metric.name: value, "validation_loss": event.validation_loss}
        if best is not None:
            numbers |= {"previous": best.value, "previous_step": best.step}
        return self.decided(DecisionKind.NEW_BEST, IMPROVED, numbers=numbers)

    def decided(
        self, kind: DecisionKind, reason: Reason, *, numbers: Mapping[str, float], message: str = ""
    ) -> Decision:
        """Return what the study itself decides about the trial as it stands, not one of the rules."""
        return Decision(
            trial_id=self.trial_id,
            step=self.trajectory.num_steps,
            kind=kind,
            reason=reason,
            rule="study",
            numbers=numbers,
            message=message,
        )
