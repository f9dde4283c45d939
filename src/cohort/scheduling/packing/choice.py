"""Whether a run follows a plan of packs, or refills its slots as trials end: what is predicted to end first."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cohort.core.units import counted, format_duration
from cohort.scheduling.admission import Capacity, Request
from cohort.scheduling.cost.model import AdapterWork, StepCost
from cohort.scheduling.cost.task_time import training_time
from cohort.scheduling.packing.left_trials import left_trials
from cohort.scheduling.packing.records import PackingProblem, PackPlan
from cohort.scheduling.packing.verify import check_pack_plan

__all__ = ["ChosenPacking", "Packing", "choose_packing", "run_settings"]

# a plan rests on predicted seconds: one that is predicted to save less is not worth following
LEAST_GAIN = 0.02
# planning takes seconds, which shorter training would not win back
LEAST_SECONDS = 30.0
# integer programs of a run's plan, about a second for 60 trials: the devices wait for it
MOST_SOLVES = 400


def run_settings() -> Any:
    """Return the settings of the planner in a run: it plans between two steps, while the devices wait."""
    planner = importlib.import_module("cohort.scheduling.packing.planner")
    return planner.PackingSettings(most_solves=MOST_SOLVES, most_deadlines=3)


class Packing(StrEnum):
    """What a task asks for."""

    AUTO = "auto"
    PLANNED = "planned"
    REFILL = "refill"


@dataclass(frozen=True, kw_only=True)
class ChosenPacking:
    """What a run does with the trials that are left.

    Attributes:
        plan: The packs that it follows; None where slots are refilled.
        problem: What was planned; None where nothing was.
        planned_seconds, refill_seconds: Predicted; None where the plan was not made.
        reason: In words, with both predictions.
    """

    reason: str
    plan: PackPlan | None = None
    problem: PackingProblem | None = None
    planned_seconds: float | None = None
    refill_seconds: float | None = None


def choose_packing(
    requests: Sequence[Request],
    *,
    works: Mapping[int, AdapterWork],
    capacity: Capacity,
    cost: StepCost,
    wanted: Packing,
) -> ChosenPacking:
    """Choose for the trials that are left, each of which trains to its end.

    Args:
        requests: Those trials.
        works: What each has still to do, by trial.
        cost: Of a step of one executor.
        wanted: What the task asks for. ``auto`` follows a plan that ends at least 2 % before refilled slots.

    Raises:
        InputError: a trial fits nowhere.
    """
    if wanted is Packing.REFILL:
        return ChosenPacking(reason="as the task asks")
    refill = training_time(requests, works=works, capacity=capacity, cost=cost).seconds
    if wanted is Packing.AUTO and refill < LEAST_SECONDS:
        reason = f"what is left is predicted to take {format_duration(refill)}, too short to plan"
        return ChosenPacking(reason=reason, refill_seconds=refill)
    problem = left_trials(requests, works=works, capacity=capacity, cost=cost)
    # imported where a plan is wanted: the solver takes half a second to import, and may be missing on a GPU machine
    planner = importlib.import_module("cohort.scheduling.packing.planner")
    plan: PackPlan = planner.plan_packs(problem, settings=run_settings())
    # the check shares no code with the planner
    check_pack_plan(plan, problem)
    planned = plan.makespan_seconds
    told = (
        f"{counted(len(plan.jobs), 'planned pack')} predicted to end after {format_duration(planned)}, refilled slots "
        f"after {format_duration(refill)}"
    )
    if wanted is Packing.AUTO and planned > (1 - LEAST_GAIN) * refill:
        return ChosenPacking(reason=told, problem=problem, planned_seconds=planned, refill_seconds=refill)
    return ChosenPacking(reason=told, plan=plan, problem=problem, planned_seconds=planned, refill_seconds=refill)
