"""The study: what it decides, which checkpoint is the best, and what callers cannot ask of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort.core.events import Evaluated, TrialFailed
from cohort.tuning.decisions import DecisionKind
from cohort.tuning.evaluation_times import EvaluationSettings, plan_candidate
from cohort.tuning.objective_metric import ObjectiveMetric, TieRule
from cohort.tuning.study import Study
from cohort.tuning.study_trial import StudyError
from cohort.tuning.trial_status import TrialStatus
from tests.tuning.loss_curves import advance, by_rank, curve, step_done


def test_a_trial_behind_the_share_of_all_is_hopeless_before_the_last_arrives() -> None:
    curves = [curve(i, validation=[1.0 + i, 1.0]) for i in range(8)]
    study = Study([c.candidate for c in curves], by_rank(select_fraction=0.25))
    found = []
    for recorded in curves[:5]:
        advance(study, recorded)
        found.append(study.certain_to_stop())
    assert found == [frozenset(), frozenset(), {2}, {2, 3}, {2, 3, 4}]
    study.add([replace(curves[0].candidate, trial_id=n) for n in (8, 9)])
    assert study.certain_to_stop() == {3, 4}, "with ten candidates three are kept"


def test_a_trial_that_completes_is_recorded_with_its_last_loss_and_its_steps() -> None:
    study = Study([curve(0, validation=[3.0, 2.0, 1.5]).candidate], by_rank(select_fraction=1.0))
    while not study.is_finished:
        advance(study, curve(0, validation=[3.0, 2.0, 1.5]))
    done = [decision for decision in study.decisions if decision.kind is DecisionKind.FINISH]
    steps = study.trajectory(0).num_steps
    assert [dict(decision.numbers) for decision in done] == [{"validation_loss": 1.5, "planned_steps": steps}]


def test_a_failure_is_final_and_its_best_still_competes() -> None:
    study = Study([curve(0, validation=[1.0] * 3).candidate], by_rank(select_fraction=1.0))
    study.start(0)
    study.observe(step_done(0, 1, 1.0))
    study.observe(Evaluated(trial_id=0, step=1, validation_loss=0.75))
    (decision,) = study.observe(TrialFailed(trial_id=0, step=1, message="out of memory three times"))
    assert (decision.kind, decision.reason, decision.message) == ("stop", "failed", "out of memory three times")
    assert study.observe(TrialFailed(trial_id=0, step=1, message="again")) == ()
    assert study.is_finished
    best = study.result()
    assert best is not None
    assert best.value == 0.75


def test_the_result_follows_the_metric_and_the_rules_the_loss() -> None:
    metric = ObjectiveMetric(name="exact_match", maximize=True)
    curves = [curve(i, validation=[loss, loss]) for i, loss in enumerate([1.0, 2.0, 3.0])]
    study = Study([c.candidate for c in curves], by_rank(select_fraction=0.5), metric=metric)
    matches = {0: [0.25, 0.5], 1: [0.5, 0.5], 2: [0.75, 0.0]}
    for step in (1, 2):
        for trial_id in study.runnable():
            if study.status(trial_id) is not TrialStatus.RUNNING:
                study.start(trial_id)
            study.observe(step_done(trial_id, step, 1.0))
            study.observe(
                Evaluated(
                    trial_id=trial_id,
                    step=step,
                    validation_loss=1.0 + trial_id,
                    metrics={"exact_match": matches[trial_id][step - 1]},
                )
            )
    kept = [d.trial_id for d in study.decisions if d.kind is DecisionKind.KEEP]
    assert kept == [0, 1], "ranked by validation loss"
    best = study.result()
    assert best is not None
    assert (best.trial_id, best.step, best.value) == (2, 1, 0.75)
    news = [(d.trial_id, d.step) for d in study.decisions if d.kind is DecisionKind.NEW_BEST]
    assert news == [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2)], "equal values at equal losses: the later step is better"


@pytest.mark.parametrize(("first_rows", "kept"), [((), 0), ((0.0,) * 8, 1)])
def test_accuracies_are_not_ranked_with_losses_of_a_run_that_began_without_rows(
    first_rows: tuple[float, ...], kept: int
) -> None:
    metric = ObjectiveMetric(name="reward_accuracy", maximize=True)
    curves = [curve(i, validation=[1.0 + i, 1.0 + i]) for i in range(2)]
    study = Study([c.candidate for c in curves], by_rank(select_fraction=0.5), metric=metric)
    # a resume between the two: the second evaluation has rows, in which its trial is better, and a higher loss
    for trial_id, rows in enumerate((first_rows, (1.0,) * 8)):
        study.start(trial_id)
        study.observe(step_done(trial_id, 1, 1.0))
        study.observe(
            Evaluated(
                trial_id=trial_id,
                step=1,
                validation_loss=1.0 + trial_id,
                metrics={"reward_accuracy": float(trial_id)},
                row_values={"loss": (1.0,) * 8, "reward_accuracy": rows} if rows else {},
            )
        )
    assert [d.trial_id for d in study.decisions if d.kind is DecisionKind.KEEP] == [kept]


def _all_score_zero(ties: TieRule) -> Study:
    """Return a study whose trials score 0 throughout while their losses fall, trial 1's furthest."""
    losses = {0: [11.1, 9.0, 8.5], 1: [10.0, 5.0, 4.6], 2: [10.5, 7.0, 7.5]}
    curves = [curve(trial_id, validation=found) for trial_id, found in losses.items()]
    metric = ObjectiveMetric(name="exact_match", maximize=True, ties=ties)
    study = Study([c.candidate for c in curves], by_rank(rule="none"), metric=metric)
    for trial_id, found in losses.items():
        study.start(trial_id)
        for step, loss in enumerate(found, start=1):
            study.observe(step_done(trial_id, step, 1.0))
            study.observe(Evaluated(trial_id=trial_id, step=step, validation_loss=loss, metrics={"exact_match": 0.0}))
    return study


def test_equal_scores_go_to_the_lower_validation_loss_in_a_trial_and_between_trials() -> None:
    study = _all_score_zero(TieRule.LOSS)
    bests = [study.best_of(trial_id) for trial_id in (0, 1, 2)]
    assert [best and (best.step, best.validation_loss) for best in bests] == [(3, 8.5), (3, 4.6), (2, 7.0)]
    best = study.result()
    assert best is not None
    assert (best.trial_id, best.step) == (1, 3)


def test_a_run_recorded_before_keeps_its_rule_for_ties() -> None:
    study = _all_score_zero(TieRule.EARLIEST)
    best = study.result()
    assert best is not None
    assert (best.trial_id, best.step) == (0, 1)
    news = [(d.trial_id, d.step) for d in study.decisions if d.kind is DecisionKind.NEW_BEST]
    assert news == [(0, 1), (1, 1), (2, 1)]


def test_evaluations_without_the_metric_make_no_best() -> None:
    recorded = curve(0, validation=[1.0, 1.0])
    study = Study([recorded.candidate], by_rank(), metric=ObjectiveMetric(name="exact_match", maximize=True))
    advance(study, recorded)
    assert study.result() is None


def test_ties_of_the_result_go_to_the_smaller_trial_id() -> None:
    curves = [curve(i, validation=[1.0, 0.5]) for i in (2, 0, 1)]
    study = Study([c.candidate for c in curves], by_rank(rule="none"))
    for _ in range(2):
        for recorded in curves:
            advance(study, recorded)
    best = study.result()
    assert best is not None
    assert (best.trial_id, best.step) == (0, 2)


def test_new_best_comes_before_what_takes_the_trial_away() -> None:
    recorded = curve(0, validation=[1.0, 0.5])
    study = Study([recorded.candidate], by_rank())
    study.start(0)
    study.observe(step_done(0, 1, 1.0))
    decisions = study.observe(Evaluated(trial_id=0, step=1, validation_loss=1.0))
    assert [d.kind for d in decisions] == [DecisionKind.NEW_BEST, DecisionKind.PARK, DecisionKind.KEEP]


def test_next_evaluation() -> None:
    candidate = plan_candidate(0, planned_steps=40, warmup_fraction=0.1, settings=EvaluationSettings())
    study = Study([candidate], by_rank(select_fraction=1.0))
    assert candidate.evaluation_steps[:4] == (2, 3, 4, 6)
    assert study.next_evaluation(0) == 2
    study.start(0)
    study.observe(step_done(0, 1, 1.0))
    study.observe(step_done(0, 2, 1.0))
    assert study.next_evaluation(0) == 2, "due now"
    study.observe(Evaluated(trial_id=0, step=2, validation_loss=1.0))
    assert study.next_evaluation(0) == 3


def test_a_paused_trial_can_go_on() -> None:
    curves = [curve(i, validation=[1.0] * 3) for i in range(2)]
    study = Study([c.candidate for c in curves], by_rank(rule="none"))
    advance(study, curves[0])
    study.pause(0)
    assert study.runnable() == (1, 0)
    advance(study, curves[0])
    assert study.runnable() == (0, 1)


def two_trials() -> Study:
    return Study([curve(i, validation=[1.0] * 4).candidate for i in range(2)], by_rank())


def test_events_of_a_trial_that_was_not_started() -> None:
    with pytest.raises(StudyError, match=r"trial 0 is waiting but sent step 1; start\(\) it first"):
        two_trials().observe(step_done(0, 1, 1.0))


def test_events_of_a_parked_trial() -> None:
    study = two_trials()
    advance(study, curve(0, validation=[1.0] * 4))
    with pytest.raises(StudyError, match="trial 0 is parked"):
        study.observe(step_done(0, 2, 1.0))
    with pytest.raises(StudyError, match="is parked and cannot become running; it can become failed, stop"):
        study.start(0)


def test_an_unknown_trial() -> None:
    with pytest.raises(StudyError, match=r"trial 7 is not in the study, which has \[0, 1\]"):
        two_trials().observe(step_done(7, 1, 1.0))


def test_starting_twice() -> None:
    study = two_trials()
    study.start(0)
    with pytest.raises(StudyError, match="is running and cannot become running"):
        study.start(0)


def test_a_gap() -> None:
    study = two_trials()
    study.start(0)
    with pytest.raises(StudyError, match="went from step 0 to 2; events are missing"):
        study.observe(step_done(0, 2, 1.0))


def test_a_step_past_a_due_evaluation() -> None:
    study = two_trials()
    study.start(0)
    study.observe(step_done(0, 1, 1.0))
    with pytest.raises(StudyError, match="without its evaluation after step 1"):
        study.observe(step_done(0, 2, 1.0))


def test_an_evaluation_before_its_step() -> None:
    study = two_trials()
    study.start(0)
    with pytest.raises(StudyError, match="was evaluated after step 1; it has done 0"):
        study.observe(Evaluated(trial_id=0, step=1, validation_loss=1.0))


def test_two_trials_of_one_id() -> None:
    with pytest.raises(StudyError, match="trial 0 is already in the study"):
        two_trials().add([curve(0, validation=[1.0]).candidate])
