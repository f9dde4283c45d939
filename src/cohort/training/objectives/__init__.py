"""Objectives by the name they have in task files. A new one is its file, its line here and its test."""

from __future__ import annotations

from cohort.training.objectives.objective import Objective
from cohort.training.objectives.sft import SupervisedFineTuning

__all__ = ["DEFAULT_OBJECTIVE", "OBJECTIVES"]

OBJECTIVES: dict[str, Objective] = {"sft": SupervisedFineTuning()}
DEFAULT_OBJECTIVE = OBJECTIVES["sft"]
