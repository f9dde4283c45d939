"""Recorded loss curves through a study: which trials would have ended when, and what that saves.

For benchmarks and tests. The curves say what each trial would have measured had it run to its end, so any rule and
any threshold can be tried on them without training again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cohort.core.events import Evaluated, StepDone
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import Decision, Reason
from cohort.tuning.early_exit.settings import EarlyExitSettings
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric
from cohort.tuning.study import Study
from cohort.tuning.study_trial import BestCheckpoint
from cohort.tuning.trial_status import TrialStatus

__all__ = ["RecordedCurve", "ReplayReport", "replay_curves"]


@dataclass(frozen=True, kw_only=True)
class RecordedCurve:
    """What one trial measures when nothing stops it.

    Attributes:
        train_losses: Loss of step 1, 2, ...; may end early where the record does, at a non-finite loss.
        row_values: By step, what each evaluation row has, by name. Without them comparisons go by ranks alone.
    """

    candidate: Candidate
    train_losses: Sequence[float]
    validation_losses: Mapping[int, float]
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    row_values: Mapping[int, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    batch_size: int = 1

    @classmethod
    def from_points(
        cls,
        candidate: Candidate,
        points: Sequence[tuple[int, float, float]],
        *,
        batch_size: int = 1,
        ema_weight: float = 0.1,
        row_values: Mapping[int, Mapping[str, tuple[float, ...]]] | None = None,
    ) -> RecordedCurve:
        """Return the curve of a record that holds (step, smoothed training loss, validation loss) alone.

        Between two points the training loss is the constant that leads the smoothing from one value to the next, so
        a replay meets the recorded values at the points, up to rounding. Where a point is not finite, the last step
        before it is the one that was not.

        Args:
            candidate: Its evaluation steps must be among the points.
        """
        losses: list[float] = []
        ema: float | None = None
        for step, value, _ in points:
            count = step - len(losses)
            if ema is None or not (math.isfinite(value) and math.isfinite(ema)):
                # Nothing can be solved for here; a NaN at its last step is what the smoothing would have turned into.
                losses += [value if ema is None else ema] * (count - 1) + [value]
            else:
                left = (1 - ema_weight) ** count
                losses += [(value - left * ema) / (1 - left)] * count
            ema = value
        return cls(
            candidate=candidate,
            train_losses=losses,
            validation_losses={step: validation for step, _, validation in points},
            batch_size=batch_size,
            row_values=row_values or {},
        )


@dataclass(frozen=True, kw_only=True)
class ReplayReport:
    """What early exit made of the curves.

    Attributes:
        best: The best checkpoint; None when nothing finite was measured.
        samples_used: Training examples of all trials together.
        samples_full: The same without early exit.
        samples_saved_by: Examples that each reason to end saved.
    """

    decisions: tuple[Decision, ...]
    best: BestCheckpoint | None
    steps: Mapping[int, int]
    samples_used: int
    samples_full: int
    samples_saved_by: Mapping[Reason, int]

    @property
    def saved_share(self) -> float:
        """Share of the full grid's training examples that were not needed."""
        return 1 - self.samples_used / self.samples_full


def replay_curves(
    curves: Sequence[RecordedCurve],
    settings: EarlyExitSettings,
    *,
    metric: ObjectiveMetric = LOSS,
    num_slots: int | None = None,
) -> ReplayReport:
    """Run a study over recorded curves, one step of each resident trial at a time.

    Args:
        num_slots: Trials resident at once; all by default. Only rules that depend on the order of results (ASHA,
            median) decide differently for another number.

    Raises:
        ValueError: a trial goes on beyond its record.
    """
    # A real study, not a model of it: what is tried on curves is what a run does.
    by_id = {curve.candidate.trial_id: curve for curve in curves}
    study = Study([curve.candidate for curve in curves], settings, metric=metric)
    while not study.is_finished:
        # One step of each in turn, as a packed executor advances its residents.
        resident = study.runnable()[:num_slots]
        assert resident, "an unfinished study has a trial that can go on"
        for trial_id in resident:
            if study.status(trial_id) is not TrialStatus.RUNNING:
                study.start(trial_id)
            _advance(study, by_id[trial_id])
    steps = {trial_id: study.trajectory(trial_id).num_steps for trial_id in by_id}
    saved: Counter[Reason] = Counter()
    for trial_id, curve in by_id.items():
        reason = study.reason(trial_id)
        assert reason is not None, "a finished study has a reason for every trial"
        saved[reason] += (curve.candidate.planned_steps - steps[trial_id]) * curve.batch_size
    return ReplayReport(
        decisions=study.decisions,
        best=study.result(),
        steps=steps,
        samples_used=sum(steps[trial_id] * curve.batch_size for trial_id, curve in by_id.items()),
        samples_full=sum(curve.candidate.planned_steps * curve.batch_size for curve in curves),
        samples_saved_by=dict(saved),
    )


def _advance(study: Study, curve: RecordedCurve) -> None:
    """Do one step of a trial, and its evaluation when one is due."""
    trial_id = curve.candidate.trial_id
    step = study.trajectory(trial_id).num_steps + 1
    # Guessing how the curve goes on would make the saved samples of a rule look better or worse than they are.
    if step > len(curve.train_losses):
        raise ValueError(f"trial {trial_id} goes on to step {step} but its record has {len(curve.train_losses)}")
    loss = curve.train_losses[step - 1]
    study.observe(StepDone(trial_id=trial_id, step=step, loss=loss, grad_norm=0.0, learning_rate=0.0, num_tokens=0))
    if study.next_evaluation(trial_id) == step:
        if step not in curve.validation_losses:
            raise ValueError(f"trial {trial_id} is evaluated after step {step} but its record has no loss there")
        validation_loss = curve.validation_losses[step]
        metrics = curve.metrics.get(step, {})
        rows = curve.row_values.get(step, {})
        study.observe(
            Evaluated(trial_id=trial_id, step=step, validation_loss=validation_loss, metrics=metrics, row_values=rows)
        )
