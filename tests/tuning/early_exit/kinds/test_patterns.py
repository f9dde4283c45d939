"""Which detectors and selections the default rule consists of, and what work it is predicted to leave."""

from __future__ import annotations

import pytest

from cohort.tuning.early_exit import EarlyExitSettings, build_rules
from cohort.tuning.early_exit.kinds.patterns import EXIT_RULE
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
        (
            {
                "warmup_fraction": 0.2,
                "select_fraction": 0.5,
                "reselect_at": 0.6,
                "reselect_fraction": 0.5,
                "finish_at": 0.6,
            },
            0.375,
        ),
        ({"select_fraction": 1.0}, 1.0),
    ],
)
def test_the_share_of_work_that_is_left(keys: dict[str, float], share: float) -> None:
    settings = EarlyExitSettings().with_keys(**keys)
    assert EXIT_RULE.kept_share(settings.options, settings.common, None) == pytest.approx(share)


@pytest.mark.parametrize(
    ("num_trials", "first", "second", "third"),
    [
        # twelve go on after the first comparison, eight after the second, and six after the third
        (1, 1, 1, 1),
        # which is none where the second left all
        (8, 8, 8, 8),
        (9, 9, 8, 6),
        (12, 12, 8, 6),
        (20, 12, 8, 6),
        # ceil(0.375 * 12) = 5 is below the floor of eight; of 24 that go on, 9 are above it
        (24, 12, 8, 6),
        (60, 24, 9, 6),
        (61, 25, 10, 7),
        (120, 48, 18, 12),
    ],
)
def test_the_floors_keep_more_of_few_trials(num_trials: int, first: int, second: int, third: int) -> None:
    settings = EarlyExitSettings()
    shares = [settings.kept_at(share, num_trials=num_trials) for share in (0.05, 0.2, 0.65, 1.0)]
    assert shares == pytest.approx([1, first / num_trials, second / num_trials, third / num_trials])
    # of the 95 % after warm-up: 15 points to the second comparison, 45 to the third, 35 after it
    assert settings.kept_share(num_trials) == pytest.approx((15 * first + 45 * second + 35 * third) / 95 / num_trials)


@pytest.mark.parametrize("num_trials", [5, 14, 24, 40])
def test_the_announced_shares_are_what_a_sweep_of_ranked_trials_does(num_trials: int) -> None:
    settings = EarlyExitSettings(risk=1, compare_after_steps=1)
    curves = [curve(i, validation=[1.0 + i] * 20) for i in range(num_trials)]
    steps = replay_curves(curves, settings).steps
    assert sum(steps.values()) / (20 * num_trials) == pytest.approx(
        0.05 + 0.95 * settings.kept_share(num_trials), abs=1e-9
    )
