"""A study is a function of its events: any order of trials, any repeats, and a log that is cut lead to the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.core.errors import RunStateError
from cohort.core.events import Evaluated, TrialEvent
from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.early_exit import EarlyExitSettings
from cohort.tuning.early_exit.lookup import EXIT_RULES
from cohort.tuning.evaluation_times import EvaluationSettings, plan_candidate
from cohort.tuning.replay import RecordedCurve
from cohort.tuning.study import Study
from cohort.tuning.trial_status import TrialStatus
from tests.conftest import examples
from tests.tuning.loss_curves import advance, by_rank, curve, endings, step_done

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
        state = "parked for a verdict" if study.awaits_verdict(trial_id) else study.status(trial_id)
        begun = study.trajectory(trial_id).num_steps > 0
        states[trial_id] = "not resident" if state in (TrialStatus.WAITING, TrialStatus.PARKED) else str(state)
        if state is TrialStatus.RUNNING and not begun:
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
    return by_rank(rule=rule, warmup_fraction=0.25, select_fraction=0.4, reduction_factor=2, patience=2)


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
@settings(max_examples=examples(60))
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
@settings(max_examples=examples(40))
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


@settings(max_examples=examples(60))
@given(curves=curve_sets(), data=st.data())
def test_going_on_from_a_cut_log_is_going_on(curves: list[RecordedCurve], data: st.DataObject) -> None:
    study, log = run_in_order(curves, "patterns", data)
    cut = data.draw(st.integers(0, len(log)))
    resumed = Study([c.candidate for c in curves], early_exit("patterns"))
    resumed.replay(log[:cut])
    resumed.replay(log[cut:])
    assert snapshot(resumed) == snapshot(study)


@settings(max_examples=examples(100))
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
@settings(max_examples=examples(80))
@given(curves=curve_sets(), data=st.data())
def test_who_is_called_hopeless_is_never_kept(rule: str, curves: list[RecordedCurve], data: st.DataObject) -> None:
    study = Study([c.candidate for c in curves], early_exit(rule))
    by_id = {c.candidate.trial_id: c for c in curves}
    certain_to_stop: set[int] = set()
    while not study.is_finished:
        advance(study, by_id[data.draw(st.sampled_from(study.runnable()))])
        now = study.certain_to_stop()
        assert all(study.awaits_verdict(trial_id) for trial_id in now)
        assert {trial_id for trial_id in certain_to_stop if study.awaits_verdict(trial_id)} <= now
        certain_to_stop |= now
        assert all(study.status(trial_id) in (TrialStatus.PARKED, TrialStatus.STOPPED) for trial_id in certain_to_stop)


def test_events_after_the_end_change_nothing() -> None:
    study = Study([curve(0, validation=[1.0] * 3).candidate], by_rank())
    study.start(0)
    study.observe(step_done(0, 1, float("nan")))
    before = snapshot(study)
    assert study.observe(step_done(0, 2, 1.0)) == ()
    assert study.observe(Evaluated(trial_id=0, step=1, validation_loss=1.0)) == ()
    assert snapshot(study) == before


def test_a_refilled_trial_is_replayed_where_it_was_added() -> None:
    curves = [curve(i, validation=[3.0 - i, 1.0]) for i in range(3)]
    study = Study([c.candidate for c in curves[:2]], by_rank(select_fraction=0.5))
    log: list[object] = [*advance(study, curves[0]), *advance(study, curves[1])]
    study.add([curves[2].candidate])
    log += [curves[2].candidate, *advance(study, curves[2])]
    rebuilt = Study([c.candidate for c in curves[:2]], by_rank(select_fraction=0.5))
    rebuilt.replay(log, recorded=study.decisions)  # type: ignore[arg-type]
    assert snapshot(rebuilt) == snapshot(study)
    assert endings(study.decisions)[-1] == (2, 1, "keep", "selected")


def two_trials() -> Study:
    return Study([curve(i, validation=[1.0] * 4).candidate for i in range(2)], by_rank())


def test_a_log_that_does_not_lead_to_its_decisions() -> None:
    study = two_trials()
    log = advance(study, curve(0, validation=[1.0] * 4))
    recorded = list(study.decisions)
    recorded[-1] = replace(recorded[-1], kind=DecisionKind.STOP)
    with pytest.raises(RunStateError, match="decision 1 was recorded as"):
        two_trials().replay(log, recorded=recorded)
    with pytest.raises(RunStateError, match="the events lead to None"):
        two_trials().replay(log, recorded=[*study.decisions, study.decisions[0]])
