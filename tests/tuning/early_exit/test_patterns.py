"""Which detectors and selections the default rule consists of, and what work it is predicted to leave."""

from __future__ import annotations

import pytest

from cohort.tuning.early_exit import EarlyExitSettings, build_rules
from cohort.tuning.early_exit.patterns import EXIT_RULE


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
    assert EXIT_RULE.kept_share(settings.options, settings.common) == pytest.approx(share)
