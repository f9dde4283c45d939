"""What every rule has before it says anything of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.core.events import Evaluated
from cohort.core.setting_fields import whole
from cohort.tuning.candidate import Candidate
from cohort.tuning.early_exit.rule import CommonSettings, ExitRule, Observation, Rule, RuleSettings, Verdict
from cohort.tuning.trajectory import Trajectory

CANDIDATE = Candidate(trial_id=3, planned_steps=8, warmup_steps=2, evaluation_steps=(2, 8))


@dataclass(frozen=True, kw_only=True)
class Waiting(RuleSettings):
    """Settings of a rule that waits."""

    waits: int = whole(2, "evaluations to wait")


class Silent(Rule):
    """A rule that says nothing."""

    name = "silent"

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        return ()


def observed(step: int) -> Observation:
    trajectory: Any = object.__new__(Trajectory)
    event = Evaluated(trial_id=3, step=step, validation_loss=1.0)
    return Observation(candidate=CANDIDATE, event=event, trajectory=trajectory)


def test_an_observation_knows_its_trial_and_the_last_step() -> None:
    assert (observed(2).trial_id, observed(2).is_last_step) == (3, False)
    assert observed(8).is_last_step


def test_a_rule_need_not_know_of_other_trials() -> None:
    rule = Silent()
    rule.add(CANDIDATE)
    assert (rule.compares_trials, rule.is_final) == (False, False)
    assert rule.observe(observed(2)) == rule.leave(3) == ()
    assert rule.certain_to_stop() == frozenset()
    unfinished: Any = Rule
    with pytest.raises(TypeError, match="observe"):
        unfinished()


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        (CommonSettings, {"warmup_fraction": 0.0}),
        (CommonSettings, {"ema_weight": 1.5}),
        (Waiting, {"waits": 0}),
        (Waiting, {"waits": 2.5}),
    ],
)
def test_settings_are_checked_where_they_are_made(settings: type[RuleSettings], keys: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        settings(**keys)
    ((name, value),) = keys.items()
    (problem,) = caught.value.problems
    assert (str(problem.where), problem.found) == (f"early_exit.{name}", repr(value))


def test_a_rule_that_foretells_nothing_saves_nothing() -> None:
    entry = ExitRule(name="silent", summary="", build=lambda settings, common: (Silent(),), settings=Waiting)
    assert entry.kept_share(Waiting(), CommonSettings(), 8) == 1.0
    assert (entry.kept_at, entry.milestones, entry.reasons) == (None, None, ())
    first, second = (entry.build(Waiting(), CommonSettings()) for _ in range(2))
    assert first[0] is not second[0], "rules keep counters, so each study has its own"
