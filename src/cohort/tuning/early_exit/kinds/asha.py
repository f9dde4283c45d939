"""ASHA (Li et al. 2020) in its stopping form: a trial is judged on arrival at a rung and never waits."""

from __future__ import annotations

from cohort.core.events import StepDone
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import DecisionKind
from cohort.tuning.early_exit.rule import SELECTED, UNDECIDED, UNDERPERFORMING, ExitRule, Observation, Rule, Verdict
from cohort.tuning.early_exit.rungs import RungSettings, rung_milestones, rung_shares, rung_steps_at
from cohort.tuning.early_exit.separation import Standing, chances, numbers_of_chance
from cohort.tuning.early_exit.step_floor import StepFloor

__all__ = ["EXIT_RULE", "AshaRule"]


class AshaRule(Rule):
    """Keeps an arrival that ranks within the best max(1, n // eta) of the n losses seen at its rung, itself included.

    The count is Optuna's (SuccessiveHalvingPruner); ties go to the smaller trial id. Decisions depend on the order of
    arrival: reproducible with one executor and a fixed token budget, else the recorded order is authoritative. An
    arrival that the rows do not tell from the best seen there goes on as well.
    """

    name = "asha"
    compares_trials = True

    def __init__(
        self,
        *,
        first_share: float,
        reduction_factor: int,
        risk: float = 1.0,
        tolerance: float = 0.0,
        least_steps: int = 1,
    ) -> None:
        self._reduction_factor, self._risk, self._tolerance = reduction_factor, risk, tolerance
        self._shares = rung_shares(first_share, reduction_factor=reduction_factor)
        self._standings: list[dict[int, Standing]] = [{} for _ in self._shares]
        self._floor = StepFloor(least_steps)

    def add(self, candidate: Candidate) -> None:
        self._floor.add(candidate)

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        # Rungs are evaluations; the steps between them bring no validation loss to rank by.
        if isinstance(observation.event, StepDone):
            return ()
        trial_id = observation.trial_id
        steps = rung_steps_at(observation.candidate, self._floor.lifted(self._shares))
        if observation.event.step not in steps:
            return ()
        rung = steps.index(observation.event.step)
        standings = self._standings[rung]
        own = standings[trial_id] = observation.standing
        # Ties go to the smaller trial id, so that the order of arrival does not decide between equals.
        ranked = sorted(standings.values(), key=lambda standing: standing.order)
        rank = ranked.index(own) + 1
        # At least one: the first arrival always goes on, or no trial would be left to compare with.
        num_kept = max(1, len(ranked) // self._reduction_factor)
        numbers = {
            "rung": rung,
            "validation_loss": own.loss,
            "rank": rank,
            "num_ranked": len(ranked),
            "num_kept": num_kept,
            "reduction_factor": self._reduction_factor,
        }
        kind, reason = DecisionKind.KEEP, SELECTED
        if rank > num_kept:
            best = ranked[0]
            chance = chances([own], best, risk=self._risk, tolerance=self._tolerance)[trial_id]
            numbers |= numbers_of_chance(
                chance,
                risk=self._risk,
                tolerance=self._tolerance,
                num_rows=len(own.rows),
                best_trial=best.trial_id,
            )
            is_worse = chance <= self._risk
            kind, reason = (DecisionKind.STOP, UNDERPERFORMING) if is_worse else (DecisionKind.KEEP, UNDECIDED)
        return (Verdict(trial_id=trial_id, kind=kind, reason=reason, numbers=numbers),)


EXIT_RULE = ExitRule(
    name="asha",
    summary="Asynchronous successive halving: a trial is judged on arrival at a rung, against those before it.",
    settings=RungSettings,
    build=lambda settings, common: (
        AshaRule(
            first_share=common.warmup_fraction,
            reduction_factor=settings.reduction_factor,
            risk=common.risk,
            tolerance=common.tolerance,
            least_steps=common.compare_after_steps,
        ),
    ),
    milestones=rung_milestones,
    reasons=(SELECTED, UNDECIDED, UNDERPERFORMING),
)
