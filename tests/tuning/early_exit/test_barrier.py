"""Barriers: who waits, who is judged, and who cannot be kept whatever the others do."""

from __future__ import annotations

from fractions import Fraction

from cohort.core.events import Evaluated
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import DecisionKind
from cohort.tuning.early_exit.barrier import BarrierRule
from cohort.tuning.early_exit.kinds.halving import HalvingRule
from cohort.tuning.early_exit.rule import Observation, Verdict
from cohort.tuning.trajectory import Trajectory


class OneBarrier(BarrierRule):
    name = "one"

    def rung_steps(self, candidate: Candidate) -> tuple[int, ...]:
        return (candidate.warmup_steps,)


def arrive(rule: BarrierRule, trial_id: int, loss: float) -> tuple[Verdict, ...]:
    event = Evaluated(trial_id=trial_id, step=1, validation_loss=loss, metrics={})
    return rule.observe(Observation(candidate=_candidate(trial_id), event=event, trajectory=Trajectory(ema_weight=1.0)))


def _candidate(trial_id: int) -> Candidate:
    return Candidate(trial_id=trial_id, planned_steps=4, warmup_steps=1, evaluation_steps=(1, 4))


def barrier(num_trials: int, share: Fraction = Fraction(1, 2)) -> BarrierRule:
    rule = OneBarrier(share=share)
    for trial_id in range(num_trials):
        rule.add(_candidate(trial_id))
    return rule


def test_it_opens_with_the_last_arrival_best_first() -> None:
    rule = barrier(3)
    assert [v.kind for v in arrive(rule, 0, 2.0)] == [DecisionKind.PARK]
    assert [v.kind for v in arrive(rule, 1, 3.0)] == [DecisionKind.PARK]
    opened = arrive(rule, 2, 1.0)
    assert [(v.trial_id, v.kind.value) for v in opened] == [(2, "park"), (2, "keep"), (0, "keep"), (1, "stop")]


def test_being_asked_before_the_first_result_does_not_fix_the_floor() -> None:
    # a resume replays what happened, and not when it was asked
    rule = HalvingRule(first_share=0.1, reduction_factor=2, least_steps=2)
    rule.add(Candidate(trial_id=0, planned_steps=8, warmup_steps=1, evaluation_steps=(1, 8)))
    assert rule.certain_to_stop() == frozenset()
    rule.add(_candidate(1))
    arrive(rule, 1, 1.0)
    assert rule.floor.share == Fraction(2, 4)


def test_an_end_elsewhere_opens_it_too() -> None:
    rule = barrier(2)
    arrive(rule, 0, 2.0)
    assert [(v.trial_id, v.kind.value) for v in rule.leave(1)] == [(0, "keep")]


def test_who_is_certain_to_stop_is_known_before_it_opens() -> None:
    rule = barrier(4)
    arrive(rule, 0, 1.0)
    assert rule.certain_to_stop() == frozenset(), "three may come that are worse"
    arrive(rule, 1, 2.0)
    arrive(rule, 2, 3.0)
    assert rule.certain_to_stop() == {2}, "two of four are kept, and two are better"


def test_a_late_arrival_is_judged_at_once() -> None:
    rule = barrier(1)
    arrive(rule, 0, 1.0)
    rule.add(_candidate(7))
    (verdict,) = arrive(rule, 7, 5.0)
    assert (verdict.kind, verdict.numbers["rank"], verdict.numbers["num_kept"]) == (DecisionKind.STOP, 2, 1)


def test_no_comparison_is_left_once_all_rungs_have_opened() -> None:
    rule = barrier(2)
    assert rule.compares_again()
    arrive(rule, 0, 2.0)
    assert rule.compares_again()
    arrive(rule, 1, 1.0)
    assert not rule.compares_again()
    # a trial that is added later has a comparison ahead, until it has begun
    rule.add(_candidate(2))
    assert rule.compares_again()
    arrive(rule, 2, 1.5)
    assert not rule.compares_again()


def test_the_next_rung_of_those_that_went_on_is_a_comparison() -> None:
    rule = HalvingRule(first_share=0.25, reduction_factor=2, least_steps=1)
    for trial_id in range(4):
        rule.add(Candidate(trial_id=trial_id, planned_steps=4, warmup_steps=1, evaluation_steps=(1, 2, 4)))
    for trial_id in range(4):
        arrive(rule, trial_id, float(trial_id))
    assert rule.compares_again()
