"""What people do to trials, as the study sees it: what it decides, what it means for others, and its replay."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from cohort.core.events import Evaluated, StepDone
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import Decision, DecisionKind, Reason
from cohort.tuning.interventions import Intervention, intervention_of
from cohort.tuning.study import Study
from cohort.tuning.study_trial import StudyError
from cohort.tuning.trial_status import TrialStatus
from tests.tuning.loss_curves import by_rank

HALVES = by_rank(rule="patterns", warmup_fraction=0.25, select_fraction=0.5, reselect_fraction=1.0)


def candidate(trial_id: int) -> Candidate:
    return Candidate(trial_id=trial_id, planned_steps=8, warmup_steps=2, evaluation_steps=(2, 4, 6, 8))


def asked(trial_id: int, kind: DecisionKind) -> Intervention:
    return Intervention(trial_id=trial_id, kind=kind, message="ada on host, 12:00")


def study_of(count: int) -> Study:
    return Study([candidate(trial_id) for trial_id in range(count)], HALVES)


def advance(study: Study, trial_id: int, *, loss: float | None = None, steps: int = 2) -> list[Decision]:
    """Take steps with an evaluation at every second one; the loss is the trial's number unless given."""
    if study.status(trial_id) is not TrialStatus.RUNNING:
        study.start(trial_id)
    found: list[Decision] = []
    for _ in range(steps):
        step, value = study.trajectory(trial_id).num_steps + 1, float(trial_id) + 1 if loss is None else loss
        done = StepDone(trial_id=trial_id, step=step, loss=value, grad_norm=1.0, learning_rate=0.1, num_tokens=1)
        found += study.observe(done)
        if step % 2 == 0:
            found += study.observe(Evaluated(trial_id=trial_id, step=step, validation_loss=value))
    return found


def kinds(decisions: Sequence[Decision]) -> list[tuple[int, str, str]]:
    return [(decision.trial_id, decision.kind.value, decision.rule) for decision in decisions]


def test_a_stopped_trial_leaves_the_comparison_and_its_best_still_counts() -> None:
    study = study_of(4)
    for trial_id in (0, 1, 2):
        advance(study, trial_id)
    assert [study.status(trial_id) for trial_id in range(4)] == [TrialStatus.PARKED] * 3 + [TrialStatus.WAITING]
    # the one that the others wait for: three are left to compare, of which two go on
    decisions = study.intervene(asked(3, DecisionKind.STOP))
    assert kinds(decisions)[0] == (3, "stop", "user")
    assert [(number, kind) for number, kind, _ in kinds(decisions)[1:]] == [(0, "keep"), (1, "keep"), (2, "stop")]
    study.intervene(asked(0, DecisionKind.STOP))
    best = study.result()
    assert best is not None
    assert best.trial_id == 0


def test_a_resumed_trial_is_out_of_reach_of_the_rules() -> None:
    study = study_of(2)
    for trial_id in (0, 1):
        advance(study, trial_id)
    assert study.status(1) is TrialStatus.STOPPED
    study.intervene(asked(1, DecisionKind.RESUME))
    assert (study.status(1), study.reason(1), study.is_finished) == (TrialStatus.PARKED, None, False)
    assert not study.awaits_verdict(1)
    # losses that rise, and rise: no rule stops it
    for loss in (5.0, 9.0, 20.0):
        advance(study, 1, loss=loss)
    assert study.status(1) is TrialStatus.COMPLETED


def test_a_kept_trial_is_compared_and_not_stopped() -> None:
    plain, kept = study_of(4), study_of(4)
    kept.intervene(asked(3, DecisionKind.PROTECT))
    for trial_id in range(4):
        advance(plain, trial_id)
        advance(kept, trial_id)
    assert plain.status(3) is TrialStatus.STOPPED
    assert kept.status(3) is TrialStatus.PARKED
    assert not kept.awaits_verdict(3)
    overruled = kept.decisions[-1]
    assert (overruled.trial_id, overruled.kind, overruled.reason) == (3, DecisionKind.KEEP, "kept by user")
    assert overruled.numbers == plain.decisions[-1].numbers
    # for all others it is as if it had been stopped
    assert [plain.status(number) for number in range(3)] == [kept.status(number) for number in range(3)]
    assert 3 not in kept.certain_to_stop()


def test_a_loss_that_is_not_finite_ends_a_kept_trial_too() -> None:
    study = study_of(2)
    study.intervene(asked(0, DecisionKind.PROTECT))
    advance(study, 0, loss=float("nan"), steps=1)
    assert (study.status(0), study.reason(0)) == (TrialStatus.STOPPED, "non-finite")


def test_what_cannot_be_is_refused() -> None:
    study = study_of(2)
    with pytest.raises(StudyError, match="cannot become parked"):
        study.intervene(asked(0, DecisionKind.RESUME))
    study.intervene(asked(0, DecisionKind.STOP))
    with pytest.raises(StudyError, match="cannot become stopped"):
        study.intervene(asked(0, DecisionKind.STOP))


def test_the_same_log_leads_to_the_same_decisions() -> None:
    study = study_of(3)
    log: list[object] = []
    study.intervene(asked(1, DecisionKind.STOP))
    study.intervene(asked(1, DecisionKind.RESUME))
    study.intervene(asked(1, DecisionKind.STOP))
    # three decisions after the same step, each with a number of its own
    assert len({json.dumps(decision.to_json()) for decision in study.decisions}) == 3
    log += [found for decision in study.decisions if (found := intervention_of(decision)) is not None]
    advance(study, 0)
    advance(study, 2)
    again = study_of(3)
    events = [
        event
        for trial_id in (0, 2)
        for event in (
            StepDone(trial_id=trial_id, step=1, loss=trial_id + 1.0, grad_norm=1.0, learning_rate=0.1, num_tokens=1),
            StepDone(trial_id=trial_id, step=2, loss=trial_id + 1.0, grad_norm=1.0, learning_rate=0.1, num_tokens=1),
            Evaluated(trial_id=trial_id, step=2, validation_loss=trial_id + 1.0),
        )
    ]
    again.replay([*log, *events], recorded=study.decisions)  # type: ignore[list-item]
    assert again.decisions == study.decisions
    assert [again.status(number) for number in range(3)] == [study.status(number) for number in range(3)]


@pytest.mark.parametrize("rule", ["patterns", "zigzag", "study"])
def test_what_a_rule_or_the_study_decided_is_nobodys_intervention(rule: str) -> None:
    decision = Decision(trial_id=1, step=4, kind=DecisionKind.STOP, reason=Reason("slow", label="slow"), rule=rule)
    assert intervention_of(decision) is None


def test_an_intervention_carries_its_numbers_and_not_the_studys() -> None:
    numbers = {"lr": 0.1, "number": 3.0, "steps": 8.0}
    decision = Decision(
        trial_id=1, step=4, kind=DecisionKind.STOP, reason=Reason("user", label="user"), rule="user", numbers=numbers
    )
    found = intervention_of(decision)
    assert found is not None
    assert found.numbers == {"lr": 0.1, "steps": 8.0}
