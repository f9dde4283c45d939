"""ASHA, against decisions worked out by hand."""

from __future__ import annotations

from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.replay import replay_curves
from tests.tuning.loss_curves import by_rank, curve


def of_kind(decisions: tuple[Decision, ...], kind: DecisionKind) -> list[int]:
    return [d.trial_id for d in decisions if d.kind is kind]


SETTINGS = by_rank(rule="asha", warmup_fraction=0.5, reduction_factor=2)


def test_arrivals_are_judged_against_those_before_them() -> None:
    # one at a time: kept when among the best max(1, n // 2) at the rung
    losses = [3.0, 4.0, 2.0, 2.5, 1.0]
    curves = [curve(i, validation=[x] * 2) for i, x in enumerate(losses)]
    report = replay_curves(curves, SETTINGS, num_slots=1)
    judged = [(d.trial_id, d.kind.value, d.numbers["rank"]) for d in report.decisions if d.rule == "asha"]
    assert judged == [(0, "keep", 1), (1, "stop", 2), (2, "keep", 1), (3, "keep", 2), (4, "keep", 1)]


def test_nobody_parks() -> None:
    report = replay_curves([curve(i, validation=[1.0 + i] * 2) for i in range(4)], SETTINGS)
    assert not of_kind(report.decisions, DecisionKind.PARK)


def test_by_rank_alone_a_stop_has_the_numbers_that_it_had_before_there_was_a_risk() -> None:
    # a resume compares what it decides with the record, number by number
    curves = [curve(i, validation=[x] * 2) for i, x in enumerate([3.0, 4.0])]
    (stop,) = [d for d in replay_curves(curves, SETTINGS, num_slots=1).decisions if d.kind is DecisionKind.STOP]
    own = {"rung": 0, "validation_loss": 4.0, "rank": 2, "num_ranked": 2, "num_kept": 1, "reduction_factor": 2}
    assert stop.numbers == own
    asked = by_rank(**{**SETTINGS.as_keys(), "risk": 0.025})
    (stop,) = [d for d in replay_curves(curves, asked, num_slots=1).decisions if d.kind is DecisionKind.STOP]
    assert stop.numbers == own | {"best_trial": 0, "chance": 0.0, "risk": 0.025, "tolerance": 0.01, "num_rows": 0}
