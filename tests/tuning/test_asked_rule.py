"""An error in the code of an exit rule names the rule, the trial and what to do."""

from __future__ import annotations

import pytest

from cohort.core.events import TrialEvent, TrialFailed
from cohort.tuning.asked_rule import ExitRuleError
from cohort.tuning.study import Study
from tests.tuning.loss_curves import by_rank, curve, step_done


@pytest.mark.parametrize("method", ["observe", "leave"])
def test_an_error_in_a_rule_names_the_rule_and_what_to_do(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def broken(self: object, about: object) -> None:
        raise AttributeError("'Evaluated' object has no attribute 'nope'")

    monkeypatch.setattr(f"cohort.tuning.early_exit.non_finite.NonFiniteRule.{method}", broken)
    recorded = curve(0, validation=[1.0, 0.5])
    study = Study([recorded.candidate], by_rank())
    study.start(0)
    event: TrialEvent = step_done(0, 1, 1.0)
    step = 1
    if method == "leave":
        event, step = TrialFailed(trial_id=0, step=0, message="out of memory"), 0
    with pytest.raises(ExitRuleError, match=rf"rule 'non_finite' .*trial 0, step {step}: AttributeError.*resume"):
        study.observe(event)
