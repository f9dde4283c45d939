"""Min GPU and Max GPU: every trial alone, which is what packing is compared with (PLoRA 6.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cohort.scheduling.packing.records import PackingProblem, PackItem, PackPlan, jobs_in_order

__all__ = ["max_gpu_plan", "min_gpu_plan"]


def min_gpu_plan(problem: PackingProblem) -> PackPlan:
    """Return the plan with each trial alone on the fewest GPUs that hold it, and all GPUs filled, first come.

    Raises:
        InputError: a trial fits nowhere, or there are no GPUs.
    """
    return _plan_alone(problem, choose=min, policy="Min GPU")


def max_gpu_plan(problem: PackingProblem) -> PackPlan:
    """Return the plan with each trial alone on as many GPUs as may be used, one after the other.

    Raises:
        InputError: a trial fits nowhere, or there are no GPUs.
    """
    return _plan_alone(problem, choose=max, policy="Max GPU")


def _plan_alone(problem: PackingProblem, *, choose: Callable[[Sequence[int]], int], policy: str) -> PackPlan:
    problem.check_plannable()
    packs = []
    for trial in problem.trials:
        degree = choose(_degrees_of(trial, problem))
        packs.append(([trial], degree, problem.seconds([trial], num_gpus=degree)))
    return PackPlan(jobs=jobs_in_order(packs, num_gpus=problem.num_gpus), num_gpus=problem.num_gpus, policy=policy)


def _degrees_of(trial: PackItem, problem: PackingProblem) -> list[int]:
    return [degree for degree in problem.degrees if problem.fits([trial], num_gpus=degree)]
