"""ASHA (Li et al. 2020) in its stopping form: a trial is judged on arrival at a rung and never waits."""

from __future__ import annotations

from cohort.core.events import StepDone
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import DecisionKind
from cohort.tuning.early_exit.rule import SELECTED, UNDERPERFORMING, ExitRule, Observation, Rule, Verdict
from cohort.tuning.early_exit.rungs import RungSettings, rung_shares, rung_steps_at

__all__ = ["EXIT_RULE", "AshaRule"]


class AshaRule(Rule):
    """Keeps an arrival that ranks within the best max(1, n // eta) of the n losses seen at its rung, itself included.

    The count is Optuna's (SuccessiveHalvingPruner); ties go to the smaller trial id. Decisions depend on the order of
    arrival: reproducible with one executor and a fixed token budget, else the recorded order is authoritative.
    """

    name = "asha"
    compares_trials = True

    def __init__(self, *, first_share: float, reduction_factor: int) -> None:
        self._reduction_factor = reduction_factor
        self._shares = rung_shares(first_share, reduction_factor=reduction_factor)
        self._losses: list[dict[int, float]] = [{} for _ in self._shares]
        self._steps_of: dict[int, tuple[int, ...]] = {}

    def add(self, candidate: Candidate) -> None:
        self._steps_of[candidate.trial_id] = rung_steps_at(candidate, self._shares)

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        trial_id = observation.trial_id
        steps = self._steps_of[trial_id]
        # Rungs are evaluations; the steps between them bring no validation loss to rank by.
        if isinstance(observation.event, StepDone) or observation.event.step not in steps:
            return ()
        rung = steps.index(observation.event.step)
        losses = self._losses[rung]
        losses[trial_id] = observation.event.validation_loss
        # Ties go to the smaller trial id, so that the order of arrival does not decide between equals.
        own = (losses[trial_id], trial_id)
        rank = sum((loss, other) <= own for other, loss in losses.items())
        # At least one: the first arrival always goes on, or no trial would be left to compare with.
        num_kept = max(1, len(losses) // self._reduction_factor)
        numbers = {
            "rung": rung,
            "validation_loss": losses[trial_id],
            "rank": rank,
            "num_ranked": len(losses),
            "num_kept": num_kept,
            "reduction_factor": self._reduction_factor,
        }
        if rank > num_kept:
            kind, reason = DecisionKind.STOP, UNDERPERFORMING
        else:
            kind, reason = DecisionKind.KEEP, SELECTED
        return (Verdict(trial_id=trial_id, kind=kind, reason=reason, numbers=numbers),)


EXIT_RULE = ExitRule(
    name="asha",
    summary="Asynchronous successive halving: a trial is judged on arrival at a rung, against those before it.",
    settings=RungSettings,
    build=lambda settings, common: (
        AshaRule(first_share=common.warmup_fraction, reduction_factor=settings.reduction_factor),
    ),
    milestones=lambda settings, common: rung_shares(common.warmup_fraction, reduction_factor=settings.reduction_factor),
    reasons=(SELECTED, UNDERPERFORMING),
)
