"""What a sweep cost, compared with training every candidate in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cohort.runs.records import TrialRecord
from cohort.tuning.evaluation_times import EVALUATION_TOKEN_COST

__all__ = ["ComputeSaved", "compute_saved"]


@dataclass(frozen=True, kw_only=True)
class ComputeSaved:
    """Counts so far, and the same for the full grid: every candidate trained to its last step, never evaluated.

    Attributes:
        planned_tokens: The full grid's tokens; trials whose plan gave none are estimated from their own steps, or from
            the others' mean where they have not begun.
    """

    # the full grid counts no evaluation although a user would evaluate it too: the comparison must not flatter us
    num_trials: int
    trained_steps: int
    planned_steps: int
    trained_samples: int
    planned_samples: int
    trained_tokens: int
    evaluation_tokens: int
    planned_tokens: int

    @property
    def cost_tokens(self) -> float:
        """What the sweep cost in tokens of training: trained ones, plus evaluated ones at their lower cost."""
        return self.trained_tokens + EVALUATION_TOKEN_COST * self.evaluation_tokens

    @property
    def share_of_full_grid(self) -> float | None:
        """Cost over that of the full grid; None before anything is planned."""
        return self.cost_tokens / self.planned_tokens if self.planned_tokens else None

    @property
    def evaluated_share(self) -> float | None:
        """The part of :attr:`share_of_full_grid` that is evaluation, by which a sweep may cost more than its grid."""
        return EVALUATION_TOKEN_COST * self.evaluation_tokens / self.planned_tokens if self.planned_tokens else None

    @property
    def num_full_runs(self) -> float | None:
        """Cost in units of one candidate's full training (the mean candidate)."""
        share = self.share_of_full_grid
        return None if share is None else share * self.num_trials


def _planned_tokens(trials: Sequence[TrialRecord]) -> int:
    per_trial: dict[int, float] = {}
    for trial in trials:
        if trial.planned_tokens is not None:
            per_trial[trial.trial_id] = trial.planned_tokens
        elif trial.steps_done:
            per_trial[trial.trial_id] = trial.tokens / trial.steps_done * trial.planned_steps
    if not per_trial:
        return 0
    # a trial that has not begun and whose plan gave no tokens is taken as one of average length
    mean = sum(per_trial.values()) / len(per_trial)
    return round(sum(per_trial.get(trial.trial_id, mean) for trial in trials))


def _batch_size(trial: TrialRecord) -> int:
    # every hyperparameter is recorded; a trial without a batch size is counted as one sample a step
    value = trial.parameters.get("batch_size", 1)
    return int(value) if isinstance(value, int | float) else 1


def compute_saved(trials: Sequence[TrialRecord], *, more_evaluated: int = 0) -> ComputeSaved:
    """Count what ``trials`` cost so far and would in full; ``more_evaluated`` tokens belong to no single trial."""
    return ComputeSaved(
        num_trials=len(trials),
        trained_steps=sum(trial.steps_done for trial in trials),
        planned_steps=sum(trial.planned_steps for trial in trials),
        trained_samples=sum(trial.steps_done * _batch_size(trial) for trial in trials),
        planned_samples=sum(trial.planned_steps * _batch_size(trial) for trial in trials),
        trained_tokens=sum(trial.tokens for trial in trials),
        evaluation_tokens=more_evaluated + sum(trial.evaluation_tokens for trial in trials),
        planned_tokens=_planned_tokens(trials),
    )
