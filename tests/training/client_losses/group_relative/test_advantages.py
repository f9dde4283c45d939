"""Advantages against their definitions, and what has none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cohort.training.client_losses.group_relative.advantages import (
    batch_advantages,
    equal_groups,
    group_advantages,
    leave_one_out_advantages,
)

REWARDS = np.array([[1.0, 0.0, 0.5, 0.0], [0.1, 0.1, 0.1, 0.1], [math.nan, 2.0, math.nan, 0.0]])


def test_a_group_is_scaled_by_its_own_deviation() -> None:
    found = group_advantages(REWARDS, scale="group")
    deviation = np.std([1.0, 0.0, 0.5, 0.0], ddof=1)
    assert found[0] == pytest.approx((REWARDS[0] - 0.375) / (deviation + 1e-4))
    assert found[2] == pytest.approx([0.0, 1 / (math.sqrt(2) + 1e-4), 0.0, -1 / (math.sqrt(2) + 1e-4)])


def test_the_batch_scales_with_the_deviation_of_all_rewards_and_none_does_not_scale() -> None:
    everything = REWARDS[np.isfinite(REWARDS)]
    plain = group_advantages(REWARDS, scale="none")
    assert plain[0] == pytest.approx(REWARDS[0] - 0.375)
    assert group_advantages(REWARDS, scale="batch") == pytest.approx(plain / (np.std(everything, ddof=1) + 1e-4))


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_no_rewards_and_a_single_one_give_exactly_nothing(scale: str) -> None:
    # the mean of three times 0.1 is not 0.1
    rewards = np.array([[0.1, 0.1, 0.1], [math.nan] * 3, [math.nan, 7.0, math.nan], [1.0, 0.0, 0.0]])
    for found in (group_advantages(rewards, scale=scale), leave_one_out_advantages(rewards, scale=scale)):
        assert not found[:3].any()
        assert found[3].any()
    assert equal_groups(rewards).tolist() == [True, True, True, False]
    assert not group_advantages(np.array([[3.0], [4.0]]), scale=scale).any()


def test_leave_one_out_compares_with_the_mean_of_the_others() -> None:
    found = leave_one_out_advantages(REWARDS, scale="group")
    assert found[0] == pytest.approx([1.0 - 0.5 / 3, 0.0 - 1.5 / 3, 0.5 - 1.0 / 3, 0.0 - 1.5 / 3])
    assert found[2] == pytest.approx([0.0, 2.0, 0.0, -2.0])


def test_the_batch_compares_with_the_mean_of_all_answers() -> None:
    everything = REWARDS[np.isfinite(REWARDS)]
    expected = (REWARDS - everything.mean()) / (np.std(everything, ddof=1) + 1e-4)
    assert batch_advantages(REWARDS, scale="none") == pytest.approx(np.nan_to_num(expected, nan=0.0))


def test_another_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="not by 'std'"):
        group_advantages(REWARDS, scale="std")
