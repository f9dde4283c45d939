"""Rewards of answers: functions of the user's and Cohort's own, computed in processes with limits of their own."""

from cohort.metrics.rewards.conversing import ConversationRunner, Reply, Said
from cohort.metrics.rewards.plan import PlannedReward, RewardPlan
from cohort.metrics.rewards.runner import RewardFinding, RewardRunner, Rewards

__all__ = [
    "ConversationRunner",
    "PlannedReward",
    "Reply",
    "RewardFinding",
    "RewardPlan",
    "RewardRunner",
    "Rewards",
    "Said",
]
