"""The objectives themselves, by the names that their files declare."""

from __future__ import annotations

from cohort.training.objectives.declaration import DEFAULT_OBJECTIVE_NAME, OBJECTIVE_DECLARATIONS
from cohort.training.objectives.objective import Objective

__all__ = ["DEFAULT_OBJECTIVE", "OBJECTIVES", "objective_named"]

OBJECTIVES: dict[str, Objective] = {
    entry.name: OBJECTIVE_DECLARATIONS.load(entry.name) for entry in OBJECTIVE_DECLARATIONS.built_in()
}
"""Cohort's own objectives by name, each with the values that a task has without a word of it."""

DEFAULT_OBJECTIVE = OBJECTIVES[DEFAULT_OBJECTIVE_NAME]


def objective_named(name: str) -> Objective:
    """Return an objective of Cohort or of an installed package.

    Raises:
        InputError: the package's objective cannot be used.
    """
    found: Objective = OBJECTIVES.get(name) or OBJECTIVE_DECLARATIONS.load(name)
    return found
