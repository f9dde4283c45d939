"""Rewards by name. A new one is a file here with its ``REWARD``, named as its file.

In another package, it is an entry point of ``cohort.rewards`` that names a ``RewardKind``.
"""

from __future__ import annotations

from cohort.core.registry import Registry
from cohort.metrics.rewards.reward import RewardKind

__all__ = ["REWARD_KINDS"]

REWARD_KINDS = Registry(
    kind=RewardKind,
    noun="reward",
    package="cohort.metrics.rewards.kinds",
    constant="REWARD",
    group="cohort.rewards",
    default="exact_match",
)
