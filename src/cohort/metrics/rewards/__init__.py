"""Rewards of answers: functions of the user's and Cohort's own, computed in processes with limits of their own."""

from cohort.metrics.rewards.plan import PlannedReward, RewardPlan

__all__ = ["PlannedReward", "RewardPlan"]
