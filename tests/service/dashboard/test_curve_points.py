"""Few points of many steps: as many as a page draws, the same steps for all trials, finer where one zooms."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.core.events import StepDone
from cohort.runs.reader import RunReader
from cohort.runs.records import TrialRecord
from cohort.runs.store import RunStore
from cohort.service.dashboard.curve_points import MOST_POINTS, pace_curve, stride_of, train_curves
from tests.runs.synthetic_run import SyntheticRun, write_synthetic_run


@pytest.mark.parametrize(("steps", "trials"), [(10, 1), (800, 1), (2000, 60), (2000, 1000), (100_000, 1000), (7, 5000)])
def test_strides_keep_the_points_of_a_page_few(steps: int, trials: int) -> None:
    stride = stride_of(steps, num_trials=trials)
    assert stride & (stride - 1) == 0, "a page drops every other point when it doubles it"
    assert trials * (steps // stride) <= max(MOST_POINTS, trials * 40)
    # not fewer than a drawing shows, where there are as many
    assert steps // stride >= min(steps, 20)


def test_a_long_run_is_sampled_and_a_part_of_it_is_whole(tmp_path: Path) -> None:
    path = write_synthetic_run(tmp_path / "run.db", SyntheticRun(trials=4, steps=1000, slots=4))
    with RunReader.open(path) as reader:
        exact = reader.log.train_losses()
        longest = max(exact, key=lambda trial: len(exact[trial]))
        whole = train_curves(reader, first=1, last=1000, num_trials=4)
        assert whole["stride"] == 2
        steps, losses = whole["curves"][str(longest)]
        assert steps == [1, *range(2, len(exact[longest]) + 1, 2)]
        known = dict(exact[longest])
        assert losses == pytest.approx([known[step] for step in steps], rel=1e-4)
        part = train_curves(reader, first=401, last=420, num_trials=4, trials=[longest])
        assert part["stride"] == 1
        assert part["curves"][str(longest)][0] == [step for step in range(401, 421) if step in known]


def test_the_pace_adds_up_to_all_tokens(tmp_path: Path) -> None:
    path = write_synthetic_run(tmp_path / "run.db", SyntheticRun(trials=4, steps=100, slots=2))
    with RunReader.open(path) as reader:
        times, rates = pace_curve(reader)["curve"]
        trials = reader.trials()
        tokens = sum(trial.tokens + trial.evaluation_tokens for trial in trials)
        width = times[1] - times[0]
        # the last row lies on the end of the last stretch
        last = reader.log.tokens_by_time(width)[-1][1]
    assert len(times) in (120, 60, 30, 15)
    assert sum(rates) * width == pytest.approx(tokens, abs=last + 1, rel=1e-3)


def test_the_pace_of_long_steps_is_drawn_over_stretches_that_hold_some(tmp_path: Path) -> None:
    clock = ManualClock()
    store = RunStore.create(tmp_path / "run.db", clock=clock)
    store.add_trials([TrialRecord(trial_id=0, parameters={}, planned_steps=40, planned_tokens=4000, seed=0)])
    for step in range(1, 41):
        clock.advance(10)
        store.append([StepDone(trial_id=0, step=step, loss=1.0, grad_norm=0.5, learning_rate=1e-4, num_tokens=100)], [])
    store.close()
    with RunReader.open(tmp_path / "run.db") as reader:
        times, rates = pace_curve(reader)["curve"]
    assert len(times) == 30
    # between one and two steps of 100 tokens in each 13 s
    assert all(7 <= rate <= 16 for rate in rates[1:-1]), rates
