"""A trial that can learn nothing from its own answers any more is ended with its reason; an unlucky one is not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cohort.core.events import StepDone
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import DecisionKind, Reason
from cohort.tuning.early_exit.collapse import ALIKE, ENDLESS, LEAST_PATIENCE, NO_ENTROPY, UNREWARDED
from cohort.tuning.early_exit.overfitting import OverfittingRule
from cohort.tuning.early_exit.settings import EarlyExitSettings, build_rules
from cohort.tuning.study import Study

WELL = {"reward": 0.5, "reward_std": 0.5, "groups_alike": 0.2, "entropy": 0.4, "cut_share": 0.1, "answer_length": 9.0}


def ended_after(later: Mapping[str, float], *, planned_steps: int = 40, healthy: int = 3) -> tuple[int, Reason] | None:
    """Return when a trial is ended whose steps are well at first and ``later`` from then on, and why."""
    candidate = Candidate(
        trial_id=0, planned_steps=planned_steps, warmup_steps=planned_steps, evaluation_steps=(planned_steps,)
    )
    study = Study([candidate], EarlyExitSettings(), are_rewards=True)
    study.start(0)
    for step in range(1, planned_steps):
        metrics = WELL if step <= healthy else {**WELL, **later}
        event = StepDone(
            trial_id=0,
            step=step,
            loss=-metrics["reward"],
            grad_norm=1.0,
            learning_rate=1e-3,
            num_tokens=9,
            metrics=metrics,
        )
        for decision in study.observe(event):
            if decision.kind is DecisionKind.STOP:
                return step, decision.reason
    return None


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        ({"groups_alike": 1.0}, ALIKE),
        ({"groups_alike": 1.0, "reward_errors": 0.5}, UNREWARDED),
        ({"entropy": 1e-4}, NO_ENTROPY),
        ({"cut_share": 1.0}, ENDLESS),
    ],
)
def test_a_collapse_ends_a_trial_with_its_reason_after_its_patience(later: dict[str, float], reason: Reason) -> None:
    assert ended_after(later) == (3 + LEAST_PATIENCE, reason)
    # of long trainings a share of the steps
    assert ended_after(later, planned_steps=200) == (3 + 30, reason)


def test_a_long_answer_that_is_rewarded_better_is_no_collapse() -> None:
    assert ended_after({"cut_share": 1.0, "reward": 0.9}) is None


def test_answers_that_were_long_from_the_start_are_no_runaway() -> None:
    assert ended_after({"cut_share": 1.0}, healthy=0) is None


def test_rewards_have_no_overfitting_and_without_early_exit_nothing_ends() -> None:
    rules = build_rules(EarlyExitSettings(), are_rewards=True)
    assert not any(isinstance(rule, OverfittingRule) for rule in rules)
    assert any(isinstance(rule, OverfittingRule) for rule in build_rules(EarlyExitSettings()))
    assert [rule.name for rule in build_rules(EarlyExitSettings(rule="none"), are_rewards=True)] == ["non_finite"]
