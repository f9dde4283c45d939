"""Which detectors and selections the default rule consists of, and what work it is predicted to leave."""

from __future__ import annotations

import pytest

from cohort.tuning.early_exit import EarlyExitSettings, build_rules
from cohort.tuning.early_exit.patterns import EXIT_RULE
from cohort.tuning.replay import replay_curves
from tests.tuning.loss_curves import curve


def test_without_a_selection_no_trial_is_parked() -> None:
    assert [r.name for r in build_rules(EarlyExitSettings(select_fraction=1.0))][1:] == ["divergence", "overfitting"]
    assert [r.name for r in build_rules(EarlyExitSettings())][-1] == "warmup_selection"


@pytest.mark.parametrize(
    ("keys", "share"),
    [
        ({"select_fraction": 0.25, "reselect_fraction": 1.0}, 0.25),
        ({"select_fraction": 0.5, "reselect_at": 0.04}, 0.5),
        ({"warmup_fraction": 0.2, "select_fraction": 0.5, "reselect_at": 0.6, "reselect_fraction": 0.5}, 0.375),
        ({"select_fraction": 1.0}, 1.0),
    ],
)
def test_the_share_of_work_that_is_left(keys: dict[str, float], share: float) -> None:
    settings = EarlyExitSettings().with_keys(**keys)
    assert EXIT_RULE.kept_share(settings.options, settings.common, None) == pytest.approx(share)


@pytest.mark.parametrize(
    ("num_trials", "first", "second"),
    [
        # twelve go on after the first comparison and eight after the second, however few there are
        (1, 1, 1),
        (8, 8, 8),
        (12, 12, 8),
        (20, 12, 8),
        # ceil(0.375 * 12) = 5 is below the floor of eight; of 24 that go on, 9 are above it
        (24, 12, 8),
        (60, 24, 9),
        (61, 25, 10),
    ],
)
def test_the_floors_keep_more_of_few_trials(num_trials: int, first: int, second: int) -> None:
    settings = EarlyExitSettings()
    shares = [settings.kept_at(share, num_trials=num_trials) for share in (0.05, 0.2, 1.0)]
    assert shares == pytest.approx([1, first / num_trials, second / num_trials])
    # of the 95 % after warm-up: 15 points between the comparisons, 80 after them
    assert settings.kept_share(num_trials) == pytest.approx((15 * first + 80 * second) / 95 / num_trials)


@pytest.mark.parametrize("num_trials", [5, 14, 24, 40])
def test_the_announced_shares_are_what_a_sweep_of_ranked_trials_does(num_trials: int) -> None:
    settings = EarlyExitSettings(risk=1, compare_after_steps=1)
    curves = [curve(i, validation=[1.0 + i] * 20) for i in range(num_trials)]
    steps = replay_curves(curves, settings).steps
    assert sum(steps.values()) / (20 * num_trials) == pytest.approx(
        0.05 + 0.95 * settings.kept_share(num_trials), abs=1e-9
    )
