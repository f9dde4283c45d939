"""Cases in which trials were once dropped by luck: what the default rule decides about them now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from cohort.tuning.decisions import DecisionKind
from cohort.tuning.early_exit import EarlyExitSettings
from cohort.tuning.evaluation_times import EvaluationSettings, plan_candidate
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric
from cohort.tuning.replay import RecordedCurve, ReplayReport, replay_curves

ACCURACY = ObjectiveMetric(name="reward_accuracy", maximize=True)


def trial(
    trial_id: int, losses: Sequence[float], *, steps: int, hits: Sequence[float] = (), metric: ObjectiveMetric = LOSS
) -> RecordedCurve:
    """A trial whose rows have the same losses and hits at every evaluation."""
    candidate = plan_candidate(trial_id, planned_steps=steps, warmup_fraction=0.05, settings=EvaluationSettings())
    mean = float(np.mean(losses))
    rows = {"loss": tuple(losses), **({metric.name: tuple(hits)} if hits else {})}
    at = candidate.evaluation_steps
    return RecordedCurve(
        candidate=candidate,
        train_losses=[mean] * steps,
        validation_losses=dict.fromkeys(at, mean),
        metrics=dict.fromkeys(at, {metric.name: float(np.mean(hits))} if hits else {}),
        row_values=dict.fromkeys(at, rows),
    )


def grid(num_trials: int, *, gap: float, noise: float, rows: int, steps: int) -> list[RecordedCurve]:
    """Trials each ``gap`` nats worse than the one before, whose rows differ from it by ``noise``."""
    rng = np.random.default_rng(num_trials)
    noises = noise * rng.standard_normal((num_trials, rows))
    # centred: the means are what they are said to be
    noises -= noises.mean(axis=1, keepdims=True)
    return [trial(n, (1.0 + gap * n + noises[n]).tolist(), steps=steps) for n in range(num_trials)]


def list_of(curves: Sequence[RecordedCurve], others: Mapping[int, RecordedCurve]) -> list[RecordedCurve]:
    """The curves, some of them replaced."""
    return [others.get(n, one) for n, one in enumerate(curves)]


def stops(report: ReplayReport) -> list[tuple[int, int]]:
    return sorted((d.step, d.trial_id) for d in report.decisions if d.kind is DecisionKind.STOP)


def test_a_grid_of_sixty_clear_trials_saves_as_much_as_by_rank() -> None:
    curves = grid(60, gap=0.05, noise=0.1, rows=128, steps=200)
    assert replay_curves(curves, EarlyExitSettings()).saved_share == pytest.approx(0.77 + 3 * 0.35 / 60)


def test_trials_that_few_rows_do_not_tell_apart_are_all_trained() -> None:
    curves = grid(16, gap=0.001, noise=1.0, rows=8, steps=200)
    assert stops(replay_curves(curves, EarlyExitSettings())) == []
    # the user may say so
    assert len(stops(replay_curves(curves, EarlyExitSettings(risk=1.0)))) == 10


def test_accuracies_on_eight_pairs_drop_no_trial() -> None:
    # 0.75 against 0.875 of 8 pairs after 2 of 30 steps ended the trial that was best on all pairs
    rng = np.random.default_rng(7)
    hits = [sorted((rng.random(8) < share).astype(float).tolist()) for share in np.linspace(0.5, 0.8, 12)]
    losses = (0.69 + 0.3 * rng.standard_normal((12, 8))).tolist()
    curves = [
        trial(n, one, steps=30, hits=hit, metric=ACCURACY)
        for n, (one, hit) in enumerate(zip(losses, hits, strict=True))
    ]
    report = replay_curves(curves, EarlyExitSettings(select_at_least=1, reselect_at_least=1), metric=ACCURACY)
    by_rank = EarlyExitSettings(risk=1.0, compare_after_steps=1, select_at_least=1, reselect_at_least=1)
    assert len(stops(report)) < len(stops(replay_curves(curves, by_rank, metric=ACCURACY)))
    assert all(step >= 4 for step, _ in stops(report))


def test_nothing_is_compared_in_the_first_steps_of_a_short_task() -> None:
    # 120 pairs in batches of 4: 5 % of 30 steps are 2, and the first evaluation after four steps is at 15 %
    curves = grid(40, gap=0.5, noise=0.01, rows=64, steps=30)
    assert min(stops(replay_curves(curves, EarlyExitSettings())))[0] == 5
    assert min(stops(replay_curves(curves, EarlyExitSettings(compare_after_steps=1))))[0] == 2


@pytest.mark.parametrize("num_trials", [2, 6, 8])
def test_of_a_handful_of_trials_none_is_ended(num_trials: int) -> None:
    curves = grid(num_trials, gap=0.5, noise=0.01, rows=64, steps=320)
    assert stops(replay_curves(curves, EarlyExitSettings())) == []


def test_of_nine_trials_none_is_ended_after_a_twentieth() -> None:
    # of six, one that a hand resumed at step 16 of 320 became the winner
    curves = grid(9, gap=0.5, noise=0.01, rows=64, steps=320)
    assert stops(replay_curves(curves, EarlyExitSettings())) == [(64, 8), (208, 6), (208, 7)]


def test_what_the_second_comparison_leaves_undecided_is_compared_again() -> None:
    curves = grid(20, gap=0.1, noise=0.3, rows=64, steps=200)
    # three trials rank sixth to eighth on rows that do not tell them from the first, until clear ones do
    late: dict[int, RecordedCurve] = {}
    for n in (5, 6, 7):
        shown = trial(n, [1.4 + 0.01 * n + 4.0 * (-1) ** row for row in range(64)], steps=200)
        clear = trial(n, [3.0] * 64, steps=200)
        later = {step for step in shown.candidate.evaluation_steps if step > 100}
        late[n] = RecordedCurve(
            candidate=shown.candidate,
            train_losses=shown.train_losses,
            validation_losses={
                **shown.validation_losses,
                **{step: clear.validation_losses[step] for step in later},
            },
            row_values={**shown.row_values, **{step: clear.row_values[step] for step in later}},
        )
    leave_five = EarlyExitSettings(select_at_least=10, reselect_at_least=5, finish_fraction=0.5, finish_at_least=5)
    report = replay_curves(list_of(curves, late), leave_five)
    ended = {trial_id: step for step, trial_id in stops(report)}
    assert {ended[n] for n in late} == {130}, "compared at 20 and 65 % of the steps"
    assert {d.reason for d in report.decisions if d.trial_id in late} >= {"undecided", "underperforming"}
    report = replay_curves(list_of(curves, late), leave_five.with_keys(finish_fraction=1.0))
    ended = {trial_id: step for step, trial_id in stops(report)}
    assert {ended[n] for n in late} == {120}, "without a third comparison at 20, 40 and 60 %"


def test_the_numbers_say_what_was_compared() -> None:
    report = replay_curves(grid(16, gap=0.001, noise=1.0, rows=16, steps=200), EarlyExitSettings())
    undecided = next(d for d in report.decisions if d.reason == "undecided")
    assert undecided.numbers["num_rows"] == 16
    assert undecided.numbers["chance"] > undecided.numbers["risk"] == 0.025
    assert undecided.numbers["best_trial"] == 0
