"""Totals of several ranks: seconds by what they did, and the tokens of the steps that they returned."""

from __future__ import annotations

from cohort.core.events import StepDone
from cohort.core.memory_records import PassKind
from cohort.core.rank_work import RankWork
from cohort.ranks.step_window import StepWindow
from cohort.ranks.work_meter import WorkMeter


def step(trial_id: int, tokens: int) -> StepDone:
    return StepDone(trial_id=trial_id, step=1, loss=1.0, grad_norm=1.0, learning_rate=0.1, num_tokens=tokens)


def test_each_rank_has_its_seconds_and_its_tokens() -> None:
    meter = WorkMeter(2)
    window = StepWindow(rounds=((step(0, 10), step(1, 20)), (step(0, 10),)))
    meter.took(PassKind.TRAIN, {0: 2.0, 1: 1.0}, {0: window, 1: (step(2, 5),)})
    meter.took(PassKind.EVALUATE, {1: 0.5}, {1: {2: "a loss"}})
    assert meter.totals == (
        RankWork(rank=0, train_seconds=2.0, num_tokens=40),
        RankWork(rank=1, train_seconds=1.0, evaluate_seconds=0.5, num_tokens=5),
    )


def test_one_rank_is_not_measured() -> None:
    meter = WorkMeter(1)
    meter.took(PassKind.TRAIN, {0: 2.0}, {})
    assert meter.totals == ()
