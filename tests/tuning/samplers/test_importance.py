"""Importance: the hyperparameter that decides has the largest share, of lists and of ranges."""

from __future__ import annotations

import math
import random

import pytest

from cohort.tuning.samplers.importance import hyperparameter_importances


@pytest.mark.parametrize("is_range", [True, False])
def test_what_decides_comes_first(is_range: bool, capfd: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(3)
    rates = [10 ** draw.uniform(-5, -2) if is_range else draw.choice([1e-5, 1e-4, 1e-3, 1e-2]) for _ in range(40)]
    configurations = [{"r": draw.choice([8, 16]), "learning_rate": rate, "seed": 0} for rate in rates]
    costs = [abs(math.log10(rate / 1e-3)) for rate in rates]
    shares = hyperparameter_importances(configurations, costs, ranges={"learning_rate": True} if is_range else {})
    assert list(shares) == ["learning_rate", "r"]
    assert shares["learning_rate"] > 0.8
    assert sum(shares.values()) == pytest.approx(1.0)
    # optuna's own messages do not reach the terminal
    assert capfd.readouterr() == ("", "")


def test_lists_and_switches_are_categories() -> None:
    modules = [["q_proj"], ["q_proj", "v_proj"]]
    configurations = [{"target_modules": modules[n % 2], "use_rslora": n % 4 < 2} for n in range(16)]
    shares = hyperparameter_importances(configurations, [float(n % 2) for n in range(16)], ranges={})
    assert shares["target_modules"] > 0.9
