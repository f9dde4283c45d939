"""One trial of a study: what it may become, which events it may send, and which of its checkpoints is best."""

from __future__ import annotations

import math

import pytest

from cohort.core.events import Evaluated
from cohort.tuning.decisions import COMPLETED, DecisionKind
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric, TieRule
from cohort.tuning.study_trial import BestCheckpoint, StudyError, StudyTrial
from cohort.tuning.trajectory import Trajectory
from cohort.tuning.trial_status import TrialStatus
from tests.tuning.loss_curves import curve, step_done


@pytest.fixture
def trial() -> StudyTrial:
    """A running trial of four steps that is evaluated after each."""
    trial = StudyTrial(candidate=curve(3, validation=[1.0] * 4).candidate, trajectory=Trajectory(ema_weight=0.1))
    trial.move(TrialStatus.RUNNING)
    return trial


def evaluated(step: int, loss: float, **metrics: float) -> Evaluated:
    return Evaluated(trial_id=3, step=step, validation_loss=loss, metrics=metrics)


def test_steps_and_evaluations_take_turns(trial: StudyTrial) -> None:
    assert trial.next_evaluation == 1
    assert trial.take_in(step_done(3, 1, 2.0))
    assert trial.next_evaluation == 1, "due now"
    assert trial.take_in(evaluated(1, 1.5))
    assert trial.next_evaluation == 2
    assert (trial.trajectory.num_steps, trial.trajectory.last_evaluated_step) == (1, 1)


def test_what_was_seen_before_changes_nothing(trial: StudyTrial) -> None:
    for event in (step_done(3, 1, 2.0), evaluated(1, 1.5)):
        assert trial.take_in(event)
    before = repr(trial.trajectory)
    # a resumed executor repeats the steps since its checkpoint, parked or not
    trial.move(TrialStatus.PARKED)
    for event in (step_done(3, 1, 9.0), evaluated(1, 9.0)):
        assert not trial.take_in(event)
    assert repr(trial.trajectory) == before


def test_events_that_cannot_follow_are_named(trial: StudyTrial) -> None:
    with pytest.raises(StudyError, match="trial 3 went from step 0 to 2; events are missing"):
        trial.take_in(step_done(3, 2, 1.0))
    with pytest.raises(StudyError, match=r"trial 3 was evaluated after step 1; it has done 0 .*\(1, 2, 3, 4\)"):
        trial.take_in(evaluated(1, 1.0))
    trial.take_in(step_done(3, 1, 1.0))
    with pytest.raises(StudyError, match="trial 3 went on to step 2 without its evaluation after step 1"):
        trial.take_in(step_done(3, 2, 1.0))
    trial.move(TrialStatus.PARKED)
    with pytest.raises(StudyError, match=r"trial 3 is parked but sent step 1; start\(\) it first"):
        trial.take_in(evaluated(1, 1.0))


def test_it_becomes_only_what_its_status_allows(trial: StudyTrial) -> None:
    with pytest.raises(StudyError, match="trial 3 is running and cannot become waiting"):
        trial.move(TrialStatus.WAITING)
    trial.move(TrialStatus.COMPLETED)
    assert trial.next_evaluation is None, "there is nothing left to evaluate"
    with pytest.raises(StudyError, match="is completed and cannot become running; it can become nothing else"):
        trial.move(TrialStatus.RUNNING)


def test_a_parked_trial_runs_again_only_after_its_verdict(trial: StudyTrial) -> None:
    trial.move(TrialStatus.PARKED, awaits_verdict=True)
    assert not trial.may_start
    with pytest.raises(StudyError, match="is parked and cannot become running; it can become failed, stopped"):
        trial.move(TrialStatus.RUNNING)
    trial.awaits_verdict = False
    trial.move(TrialStatus.RUNNING)
    assert not trial.may_start, "it is in its slot"


def test_a_trial_that_was_stopped_awaits_no_verdict(trial: StudyTrial) -> None:
    trial.move(TrialStatus.PARKED, awaits_verdict=True)
    trial.move(TrialStatus.STOPPED)
    assert not trial.awaits_verdict


def test_a_better_evaluation_is_the_best_with_the_one_before_in_the_record(trial: StudyTrial) -> None:
    first = trial.update_best(evaluated(1, 2.0), metric=LOSS)
    assert first is not None
    assert (first.kind, dict(first.numbers)) == (DecisionKind.NEW_BEST, {"loss": 2.0, "validation_loss": 2.0})
    assert trial.update_best(evaluated(2, 2.5), metric=LOSS) is None
    assert trial.update_best(evaluated(3, math.nan), metric=LOSS) is None
    second = trial.update_best(evaluated(4, 1.0), metric=LOSS)
    assert second is not None
    assert (second.numbers["previous"], second.numbers["previous_step"]) == (2.0, 1)
    assert trial.best == BestCheckpoint(trial_id=3, step=4, value=1.0, validation_loss=1.0)


@pytest.mark.parametrize(("ties", "step"), [(TieRule.LOSS, 2), (TieRule.EARLIEST, 1)])
def test_equal_scores_follow_the_rule_of_the_run(trial: StudyTrial, ties: TieRule, step: int) -> None:
    metric = ObjectiveMetric(name="exact_match", maximize=True, ties=ties)
    for place, loss in ((1, 2.0), (2, 1.0)):
        trial.update_best(evaluated(place, loss, exact_match=0.5), metric=metric)
    assert trial.update_best(evaluated(3, 0.5), metric=metric) is None, "the metric was not measured"
    assert trial.best is not None
    assert trial.best.step == step


def test_what_the_study_decides_carries_step_and_message(trial: StudyTrial) -> None:
    trial.take_in(step_done(3, 1, 1.0))
    decision = trial.decided(DecisionKind.FINISH, COMPLETED, numbers={"planned_steps": 4}, message="by hand")
    assert (decision.trial_id, decision.step, decision.rule, decision.message) == (3, 1, "study", "by hand")
