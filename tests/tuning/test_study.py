"""The study: legal transitions, order independence, idempotence and replay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.core.errors import RunStateError
from cohort.core.events import Evaluated, TrialEvent, TrialFailed
from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.early_exit import EarlyExitSettings
from cohort.tuning.early_exit.rules import EXIT_RULES
from cohort.tuning.evaluation_times import EvaluationSettings, plan_candidate
from cohort.tuning.objective_metric import ObjectiveMetric, TieRule
from cohort.tuning.replay import RecordedCurve
from cohort.tuning.study import ExitRuleError, Study, StudyError
from cohort.tuning.trial_phase import TrialPhase
from tests.tuning.loss_curves import advance, curve, endings, step_done

ORDER_FREE_RULES = [
    "patterns",
    "patience",
    "halving",
    "hyperband",
    "none",
]


def as_json(decisions: Sequence[Decision]) -> list[str]:
    return [json.dumps(decision.to_json(), sort_keys=True, allow_nan=False) for decision in decisions]


def snapshot(study: Study) -> object:
    """All that matters of a study; a trial that was started but has no event is as good as waiting."""
    states = {}
    for trial_id in study.trial_ids:
        state = study.state(trial_id)
        begun = study.trajectory(trial_id).num_steps > 0
        states[trial_id] = "not resident" if state in (TrialPhase.WAITING, TrialPhase.READY) else str(state)
        if state is TrialPhase.RUNNING and not begun:
            states[trial_id] = "not resident"
    trajectories = [repr(study.trajectory(trial_id)) for trial_id in study.trial_ids]
    return states, trajectories, as_json(study.decisions), study.result(), study.is_finished


@st.composite
def curve_sets(draw: st.DrawFn) -> list[RecordedCurve]:
    # few distinct losses, so that ties, plateaus and both kinds of slope are common
    losses = st.sampled_from([0.5, 1.0, 1.0625, 1.5, 2.0, 3.0]) | st.sampled_from([float("nan"), float("inf")])
    likely_finite = st.sampled_from([0.5, 1.0, 1.0625, 1.5, 2.0, 3.0])
    evaluation = EvaluationSettings(warmup_evaluations=2, every_fraction=0.2)
    curves = []
    for trial_id in range(draw(st.integers(1, 6))):
        planned = draw(st.integers(1, 12))
        candidate = plan_candidate(trial_id, planned_steps=planned, warmup_fraction=0.25, settings=evaluation)
        source = losses if draw(st.integers(0, 3)) == 0 else likely_finite
        train = tuple(draw(st.lists(source, min_size=planned, max_size=planned)))
        validation = {step: draw(source) for step in candidate.evaluation_steps}
        curves.append(RecordedCurve(candidate=candidate, train_losses=train, validation_losses=validation))
    return curves


def early_exit(rule: str) -> EarlyExitSettings:
    return EarlyExitSettings(rule=rule, warmup_fraction=0.25, select_fraction=0.4, reduction_factor=2, patience=2)


def run_in_order(curves: Sequence[RecordedCurve], rule: str, data: st.DataObject) -> tuple[Study, list[TrialEvent]]:
    """Advance trials in an arbitrary order, at most ``num_slots`` of them begun and not parked at a time."""
    study = Study([c.candidate for c in curves], early_exit(rule))
    by_id = {c.candidate.trial_id: c for c in curves}
    num_slots = data.draw(st.integers(1, len(curves)))
    log: list[TrialEvent] = []
    while not study.is_finished:
        resident = study.runnable()[:num_slots]
        log.extend(advance(study, by_id[data.draw(st.sampled_from(resident))]))
    return study, log


@pytest.mark.parametrize("rule", ORDER_FREE_RULES)
@settings(max_examples=60, deadline=None)
@given(curves=curve_sets(), data=st.data())
def test_order_and_pack_size_change_no_decision(rule: str, curves: list[RecordedCurve], data: st.DataObject) -> None:
    one, _ = run_in_order(curves, rule, data)
    other, _ = run_in_order(curves, rule, data)
    assert sorted(as_json(one.decisions)) == sorted(as_json(other.decisions))
    assert one.result() == other.result()
    for trial_id in one.trial_ids:
        assert repr(one.trajectory(trial_id)) == repr(other.trajectory(trial_id))
        of_one = [d for d in one.decisions if d.trial_id == trial_id]
        assert as_json(of_one) == as_json([d for d in other.decisions if d.trial_id == trial_id])


@pytest.mark.parametrize("rule", EXIT_RULES.names())
@settings(max_examples=40, deadline=None)
@given(curves=curve_sets(), data=st.data())
def test_a_replayed_log_rebuilds_the_study(rule: str, curves: list[RecordedCurve], data: st.DataObject) -> None:
    study, log = run_in_order(curves, rule, data)
    candidates = [c.candidate for c in curves]

    rebuilt = Study(candidates, early_exit(rule))
    rebuilt.replay(log, recorded=study.decisions)
    assert snapshot(rebuilt) == snapshot(study)

    # an executor that was resumed repeats events it had sent since its last checkpoint
    repeated = []
    for index, event in enumerate(log):
        repeated.append(event)
        for _ in range(data.draw(st.integers(0, 2), label=f"repeats after {index}")):
            repeated.append(log[data.draw(st.integers(0, index))])
    twice = Study(candidates, early_exit(rule))
    twice.replay(repeated)
    assert snapshot(twice) == snapshot(study)


@settings(max_examples=60, deadline=None)
@given(curves=curve_sets(), data=st.data())
def test_going_on_from_a_cut_log_is_going_on(curves: list[RecordedCurve], data: st.DataObject) -> None:
    study, log = run_in_order(curves, "patterns", data)
    cut = data.draw(st.integers(0, len(log)))
    resumed = Study([c.candidate for c in curves], early_exit("patterns"))
    resumed.replay(log[:cut])
    resumed.replay(log[cut:])
    assert snapshot(resumed) == snapshot(study)


@settings(max_examples=100, deadline=None)
@given(curves=curve_sets(), data=st.data())
def test_the_selection_keeps_its_share(curves: list[RecordedCurve], data: st.DataObject) -> None:
    study, _ = run_in_order(curves, "patterns", data)
    parked = {d.trial_id for d in study.decisions if d.kind is DecisionKind.PARK}
    kept = {d.trial_id for d in study.decisions if d.kind is DecisionKind.KEEP}
    assert kept <= parked
    assert len(kept) == -(-2 * len(parked) // 5), "ceil(0.4 n)"
    boundary = {
        trial_id: curves[trial_id].validation_losses[curves[trial_id].candidate.warmup_steps] for trial_id in parked
    }
    assert all((boundary[a], a) < (boundary[b], b) for a in kept for b in parked - kept)


@pytest.mark.parametrize("rule", ["patterns", "halving", "hyperband"])
@settings(max_examples=80, deadline=None)
@given(curves=curve_sets(), data=st.data())
def test_who_is_called_hopeless_is_never_kept(rule: str, curves: list[RecordedCurve], data: st.DataObject) -> None:
    study = Study([c.candidate for c in curves], early_exit(rule))
    by_id = {c.candidate.trial_id: c for c in curves}
    certain_to_stop: set[int] = set()
    while not study.is_finished:
        advance(study, by_id[data.draw(st.sampled_from(study.runnable()))])
        now = study.certain_to_stop()
        assert all(study.state(trial_id) is TrialPhase.PARKED for trial_id in now)
        assert {trial_id for trial_id in certain_to_stop if study.state(trial_id) is TrialPhase.PARKED} <= now
        certain_to_stop |= now
        assert all(study.state(trial_id) in (TrialPhase.PARKED, TrialPhase.STOPPED) for trial_id in certain_to_stop)


def test_a_trial_behind_the_share_of_all_is_hopeless_before_the_last_arrives() -> None:
    curves = [curve(i, validation=[1.0 + i, 1.0]) for i in range(8)]
    study = Study([c.candidate for c in curves], EarlyExitSettings(select_fraction=0.25))
    found = []
    for recorded in curves[:5]:
        advance(study, recorded)
        found.append(study.certain_to_stop())
    assert found == [frozenset(), frozenset(), {2}, {2, 3}, {2, 3, 4}]
    study.add([replace(curves[0].candidate, trial_id=n) for n in (8, 9)])
    assert study.certain_to_stop() == {3, 4}, "with ten candidates three are kept"


def test_a_failure_is_final_and_its_best_still_competes() -> None:
    study = Study([curve(0, validation=[1.0] * 3).candidate], EarlyExitSettings(select_fraction=1.0))
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
    study = Study([c.candidate for c in curves], EarlyExitSettings(select_fraction=0.5), metric=metric)
    matches = {0: [0.25, 0.5], 1: [0.5, 0.5], 2: [0.75, 0.0]}
    for step in (1, 2):
        for trial_id in study.runnable():
            if study.state(trial_id) is not TrialPhase.RUNNING:
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


def _all_score_zero(ties: TieRule) -> Study:
    """Return a study whose trials score 0 throughout while their losses fall, trial 1's furthest."""
    losses = {0: [11.1, 9.0, 8.5], 1: [10.0, 5.0, 4.6], 2: [10.5, 7.0, 7.5]}
    curves = [curve(trial_id, validation=found) for trial_id, found in losses.items()]
    metric = ObjectiveMetric(name="exact_match", maximize=True, ties=ties)
    study = Study([c.candidate for c in curves], EarlyExitSettings(rule="none"), metric=metric)
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
    study = Study([recorded.candidate], EarlyExitSettings(), metric=ObjectiveMetric(name="exact_match", maximize=True))
    advance(study, recorded)
    assert study.result() is None


def test_ties_of_the_result_go_to_the_smaller_trial_id() -> None:
    curves = [curve(i, validation=[1.0, 0.5]) for i in (2, 0, 1)]
    study = Study([c.candidate for c in curves], EarlyExitSettings(rule="none"))
    for _ in range(2):
        for recorded in curves:
            advance(study, recorded)
    best = study.result()
    assert best is not None
    assert (best.trial_id, best.step) == (0, 2)


def test_new_best_comes_before_what_takes_the_trial_away() -> None:
    recorded = curve(0, validation=[1.0, 0.5])
    study = Study([recorded.candidate], EarlyExitSettings())
    study.start(0)
    study.observe(step_done(0, 1, 1.0))
    decisions = study.observe(Evaluated(trial_id=0, step=1, validation_loss=1.0))
    assert [d.kind for d in decisions] == [DecisionKind.NEW_BEST, DecisionKind.PARK, DecisionKind.KEEP]


def test_events_after_the_end_change_nothing() -> None:
    study = Study([curve(0, validation=[1.0] * 3).candidate], EarlyExitSettings())
    study.start(0)
    study.observe(step_done(0, 1, float("nan")))
    before = snapshot(study)
    assert study.observe(step_done(0, 2, 1.0)) == ()
    assert study.observe(Evaluated(trial_id=0, step=1, validation_loss=1.0)) == ()
    assert snapshot(study) == before


def test_next_evaluation() -> None:
    candidate = plan_candidate(0, planned_steps=40, warmup_fraction=0.1, settings=EvaluationSettings())
    study = Study([candidate], EarlyExitSettings(select_fraction=1.0))
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
    study = Study([c.candidate for c in curves], EarlyExitSettings(rule="none"))
    advance(study, curves[0])
    study.pause(0)
    assert study.runnable() == (1, 0)
    advance(study, curves[0])
    assert study.runnable() == (0, 1)


class TestWhatCannotBe:
    def study(self) -> Study:
        return Study([curve(i, validation=[1.0] * 4).candidate for i in range(2)], EarlyExitSettings())

    def test_events_of_a_trial_that_was_not_started(self) -> None:
        with pytest.raises(StudyError, match=r"trial 0 is waiting but sent step 1; start\(\) it first"):
            self.study().observe(step_done(0, 1, 1.0))

    def test_events_of_a_parked_trial(self) -> None:
        study = self.study()
        advance(study, curve(0, validation=[1.0] * 4))
        with pytest.raises(StudyError, match="trial 0 is parked"):
            study.observe(step_done(0, 2, 1.0))
        with pytest.raises(StudyError, match="is parked and cannot become running; it can become failed, ready, stop"):
            study.start(0)

    def test_an_unknown_trial(self) -> None:
        with pytest.raises(StudyError, match=r"trial 7 is not in the study, which has \[0, 1\]"):
            self.study().observe(step_done(7, 1, 1.0))

    def test_starting_twice(self) -> None:
        study = self.study()
        study.start(0)
        with pytest.raises(StudyError, match="is running and cannot become running"):
            study.start(0)

    def test_a_gap(self) -> None:
        study = self.study()
        study.start(0)
        with pytest.raises(StudyError, match="went from step 0 to 2; events are missing"):
            study.observe(step_done(0, 2, 1.0))

    def test_a_step_past_a_due_evaluation(self) -> None:
        study = self.study()
        study.start(0)
        study.observe(step_done(0, 1, 1.0))
        with pytest.raises(StudyError, match="without its evaluation after step 1"):
            study.observe(step_done(0, 2, 1.0))

    def test_an_evaluation_before_its_step(self) -> None:
        study = self.study()
        study.start(0)
        with pytest.raises(StudyError, match="was evaluated after step 1; it has done 0"):
            study.observe(Evaluated(trial_id=0, step=1, validation_loss=1.0))

    def test_two_trials_of_one_id(self) -> None:
        with pytest.raises(StudyError, match="trial 0 is already in the study"):
            self.study().add([curve(0, validation=[1.0]).candidate])

    def test_a_log_that_does_not_lead_to_its_decisions(self) -> None:
        study = self.study()
        log = advance(study, curve(0, validation=[1.0] * 4))
        recorded = list(study.decisions)
        recorded[-1] = replace(recorded[-1], kind=DecisionKind.STOP)
        with pytest.raises(RunStateError, match="decision 1 was recorded as"):
            self.study().replay(log, recorded=recorded)
        with pytest.raises(RunStateError, match="the events lead to None"):
            self.study().replay(log, recorded=[*study.decisions, study.decisions[0]])


def test_a_refilled_trial_is_replayed_where_it_was_added() -> None:
    curves = [curve(i, validation=[3.0 - i, 1.0]) for i in range(3)]
    study = Study([c.candidate for c in curves[:2]], EarlyExitSettings(select_fraction=0.5))
    log: list[object] = [*advance(study, curves[0]), *advance(study, curves[1])]
    study.add([curves[2].candidate])
    log += [curves[2].candidate, *advance(study, curves[2])]
    rebuilt = Study([c.candidate for c in curves[:2]], EarlyExitSettings(select_fraction=0.5))
    rebuilt.replay(log, recorded=study.decisions)  # type: ignore[arg-type]
    assert snapshot(rebuilt) == snapshot(study)
    assert endings(study.decisions)[-1] == (2, 1, "keep", "selected")


@pytest.mark.parametrize("method", ["observe", "leave"])
def test_an_error_in_a_rule_names_the_rule_and_what_to_do(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def broken(self: object, about: object) -> None:
        raise AttributeError("'Evaluated' object has no attribute 'nope'")

    monkeypatch.setattr(f"cohort.tuning.early_exit.non_finite.NonFiniteRule.{method}", broken)
    recorded = curve(0, validation=[1.0, 0.5])
    study = Study([recorded.candidate], EarlyExitSettings())
    study.start(0)
    event: TrialEvent = step_done(0, 1, 1.0)
    step = 1
    if method == "leave":
        event, step = TrialFailed(trial_id=0, step=0, message="out of memory"), 0
    with pytest.raises(ExitRuleError, match=rf"rule 'non_finite' .*trial 0, step {step}: AttributeError.*resume"):
        study.observe(event)
