"""The median rule, against decisions worked out by hand."""

from __future__ import annotations

from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.replay import replay_curves
from tests.tuning.loss_curves import by_rank, curve, endings


def of_kind(decisions: tuple[Decision, ...], kind: DecisionKind) -> list[int]:
    return [d.trial_id for d in decisions if d.kind is kind]


SETTINGS = by_rank(rule="median", startup_trials=3)


def test_worse_than_the_median_of_those_who_came_as_far() -> None:
    losses = [1.0, 2.0, 3.0, 2.0, 2.5, 1.75]
    curves = [curve(i, validation=[x] * 3) for i, x in enumerate(losses)]
    report = replay_curves(curves, SETTINGS, num_slots=1)
    stops = [(d.trial_id, d.step, d.numbers["median"]) for d in report.decisions if d.kind is DecisionKind.STOP]
    # 3 is at the median 2.0 of (1, 2, 3) and stays; 4 is above (1, 2, 2, 3) -> 2.0
    assert stops == [(4, 1, 2.0)]


def test_the_best_so_far_is_compared() -> None:
    curves = [curve(i, validation=[2.0, 2.0, 2.0]) for i in range(3)]
    curves.append(curve(3, validation=[1.0, 9.0, 9.0], train=[9.0] * 3))
    report = replay_curves(curves, SETTINGS, num_slots=1)
    assert not of_kind(report.decisions, DecisionKind.STOP)


def test_batch_sizes_meet_at_shares() -> None:
    curves = [curve(i, validation=[2.0] * 8, warmup_steps=1) for i in range(3)]
    curves.append(curve(3, validation=[3.0] * 4, warmup_steps=1))
    report = replay_curves(curves, SETTINGS, num_slots=1)
    assert [(d.trial_id, d.step) for d in report.decisions if d.kind is DecisionKind.STOP] == [(3, 1)]


def test_a_finished_trial_is_not_stopped() -> None:
    curves = [curve(i, validation=[2.0, 1.0]) for i in range(3)]
    curves.append(curve(3, validation=[2.0, 1.5]))
    report = replay_curves(curves, SETTINGS, num_slots=1)
    assert endings(report.decisions)[-1] == (3, 2, "finish", "completed")


def test_warmup_is_left_alone() -> None:
    curves = [curve(i, validation=[2.0] * 3, warmup_steps=2) for i in range(3)]
    curves.append(curve(3, validation=[3.0] * 3, warmup_steps=2))
    report = replay_curves(curves, SETTINGS, num_slots=1)
    assert [(d.trial_id, d.step) for d in report.decisions if d.kind is DecisionKind.STOP] == [(3, 2)]


def test_by_rank_alone_a_stop_has_the_numbers_that_it_had_before_there_was_a_risk() -> None:
    # a resume compares what it decides with the record, number by number
    curves = [curve(i, validation=[x] * 2) for i, x in enumerate([1.0, 1.0, 1.0, 2.0])]
    (stop,) = [d for d in replay_curves(curves, SETTINGS, num_slots=1).decisions if d.kind is DecisionKind.STOP]
    own = {"best_validation_loss": 2.0, "median": 1.0, "num_others": 3, "startup_trials": 3, "share_of_steps": 0.5}
    assert stop.numbers == own
    asked = by_rank(**{**SETTINGS.as_keys(), "risk": 0.025})
    (stop,) = [d for d in replay_curves(curves, asked, num_slots=1).decisions if d.kind is DecisionKind.STOP]
    assert stop.numbers == own | {"chance": 0.0, "risk": 0.025, "tolerance": 0.01, "num_rows": 0}
