"""No early exit: every trial trains to its end, unless its loss is no longer finite."""

from __future__ import annotations

from cohort.tuning.early_exit.rule import ExitRule

__all__ = ["EXIT_RULE"]

EXIT_RULE = ExitRule(
    name="none",
    summary="All trials train to the end.",
    comparison_keys=(),
    build=lambda settings, common: (),  # noqa: ARG005
    milestones=lambda settings, common, floor: (),  # noqa: ARG005
)
