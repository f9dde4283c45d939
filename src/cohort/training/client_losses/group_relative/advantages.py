"""Advantages: how much better an answer was rewarded than the others to its prompt.

Source: Shao et al. 2024 (group mean and deviation); Liu et al. 2025, Dr. GRPO (no division); Hu et al. 2025,
REINFORCE++ (mean and deviation of the batch); Ahmadian et al. 2024, RLOO (the mean of the other answers).

Shapes:  G prompts · N answers to each
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["batch_advantages", "equal_groups", "group_advantages", "leave_one_out_advantages"]

Rewards = NDArray[np.float64]

# as in TRL: keeps the quotient finite where all rewards are nearly the same
_LEAST_DEVIATION = 1e-4


def group_advantages(rewards_GN: Rewards, *, scale: str) -> Rewards:
    """Return the reward less the mean of its group, over the deviation of the group, of the batch, or undivided.

    Args:
        rewards_GN: NaN where an answer has no reward: it takes no part, and its advantage is 0.
        scale: ``group``, ``batch`` or ``none``.

    Raises:
        ValueError: another ``scale``.
    """
    if scale not in ("group", "batch", "none"):
        raise ValueError(f"advantages are scaled by group, batch or none, not by {scale!r}")
    found_GN = rewards_GN - _means(rewards_GN)
    if scale == "group":
        found_GN = found_GN / (_deviations(rewards_GN) + _LEAST_DEVIATION)
    elif scale == "batch":
        found_GN = found_GN / (_deviations(rewards_GN.reshape(1, -1)) + _LEAST_DEVIATION)
    # exact: the mean of equal numbers is often rounded
    return np.where(equal_groups(rewards_GN)[:, None], 0.0, np.nan_to_num(found_GN, nan=0.0))


def batch_advantages(rewards_GN: Rewards, *, scale: str) -> Rewards:
    """Return the reward less the mean of all answers of the step, over their deviation; ``scale`` is not read."""
    del scale
    return group_advantages(rewards_GN.reshape(1, -1), scale="group").reshape(rewards_GN.shape)


def leave_one_out_advantages(rewards_GN: Rewards, *, scale: str) -> Rewards:
    """Return the reward less the mean of the other answers to the same prompt; ``scale`` is not read."""
    del scale
    counted_GN = np.isfinite(rewards_GN)
    counts_G1 = counted_GN.sum(axis=1, keepdims=True)
    sums_G1 = np.where(counted_GN, rewards_GN, 0.0).sum(axis=1, keepdims=True)
    found_GN = rewards_GN - (sums_G1 - rewards_GN) / np.maximum(counts_G1 - 1, 1)
    is_alone_G1 = counts_G1 < 2
    return np.where(equal_groups(rewards_GN)[:, None] | is_alone_G1, 0.0, np.nan_to_num(found_GN, nan=0.0))


def equal_groups(rewards_GN: Rewards) -> NDArray[np.bool_]:
    """Return which groups [G] teach nothing, because the rewards that they have are equal."""
    counted_GN = np.isfinite(rewards_GN)
    highest_G = np.where(counted_GN, rewards_GN, -np.inf).max(axis=1)
    lowest_G = np.where(counted_GN, rewards_GN, np.inf).min(axis=1)
    # without any reward the highest is below the lowest
    return np.asarray(highest_G <= lowest_G)


def _means(rewards_GN: Rewards) -> Rewards:
    counted_GN = np.isfinite(rewards_GN)
    sums_G1 = np.where(counted_GN, rewards_GN, 0.0).sum(axis=1, keepdims=True)
    return np.asarray(sums_G1 / np.maximum(counted_GN.sum(axis=1, keepdims=True), 1))


def _deviations(rewards_GN: Rewards) -> Rewards:
    """Return the deviation of each row [G, 1], with Bessel's correction; 0 where fewer than two rewards are there."""
    counted_GN = np.isfinite(rewards_GN)
    away_GN = np.where(counted_GN, rewards_GN - _means(rewards_GN), 0.0)
    counts_G1 = counted_GN.sum(axis=1, keepdims=True)
    return np.asarray(np.sqrt((away_GN * away_GN).sum(axis=1, keepdims=True) / np.maximum(counts_G1 - 1, 1)))
