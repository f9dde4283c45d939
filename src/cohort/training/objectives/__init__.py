"""Objectives by the name they have in task files, which is their file's. A new one is a file with its ``OBJECTIVE``."""

from __future__ import annotations

from cohort.core.discovery import offered_in
from cohort.training.objectives.objective import Objective

__all__ = ["DEFAULT_OBJECTIVE", "OBJECTIVES"]

OBJECTIVES: dict[str, Objective] = offered_in(__name__, "OBJECTIVE")
DEFAULT_OBJECTIVE = OBJECTIVES["sft"]
