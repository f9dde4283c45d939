"""Packs of a task's trials, divided over all GPUs of a machine by the packing planner (PLoRA 5).

``cohort run`` gives a task one GPU, where admission puts a trial into every slot that comes free; it plans no packs
ahead, since early exits are unknown then. The packing planner answers what several GPUs could do for one task with
every trial trained in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.adapters.bank import aligned_rank
from cohort.machine.measurements import read_costs
from cohort.memory.pass_estimates import LOSS_HEAD_BYTES
from cohort.memory.size_inputs import rank_row_bytes, task_optimizer
from cohort.planning.estimate.planned_machine import cost_key
from cohort.planning.estimate.task_costs import TaskCosts
from cohort.planning.planning import NamedTask, TaskPlan, where_and_when
from cohort.prepare.inputs import read_inputs
from cohort.scheduling.cost.model import CostModel
from cohort.scheduling.packing.planner import plan_packs
from cohort.scheduling.packing.records import PackingProblem, PackItem, PackPlan
from cohort.scheduling.packing.verify import check_pack_plan, packing_lower_bound

__all__ = ["TaskPacks", "packs_json", "plan_task_packs"]


@dataclass(frozen=True, kw_only=True)
class TaskPacks:
    """The packs of one task.

    Attributes:
        task: Its name.
        plan: Verified; every trial is in one pack.
        bound_seconds: No division of the trials into packs can end earlier.
        alone_seconds: Training of the task on one GPU, as it is run, by the same costs.
        parameters: Rank and examples a step of each trial, by id.
    """

    task: str
    plan: PackPlan
    bound_seconds: float
    alone_seconds: float
    parameters: Mapping[int, tuple[int, int]]


def plan_task_packs(planned: TaskPlan, *, most_gpus: int = 1) -> tuple[TaskPacks, ...]:
    """Plan the packs of every task file of ``planned``, each as if it had one machine's GPUs to itself.

    Args:
        most_gpus: Largest number of GPUs of one pack; above one, costs are analytic.

    Raises:
        InputError: a trial fits nowhere.
    """
    # a repeated file has the same packs each time: its first task stands for all
    firsts = {task.path: task for task in reversed(planned.tasks)}
    return tuple(_plan(task, planned, most_gpus=most_gpus) for task in reversed(firsts.values()))


def _plan(task: NamedTask, planned: TaskPlan, *, most_gpus: int) -> TaskPacks:
    hardware, inputs = planned.choice.hardware, read_inputs(task.file)
    # like a task, a pack never spans nodes
    num_gpus = max(len(gpus) for gpus in planned.choice.cluster.nodes.values())
    # launches of the host are left out (tokens_per_pass None): the planner needs a convex cost
    sketch = TaskCosts(task.file, inputs, hardware, read_costs(cost_key(task.file, inputs, hardware)))
    # packs take a power of two of GPUs (PLoRA 5)
    degrees = [2**k for k in range(num_gpus.bit_length()) if 2**k <= min(num_gpus, max(1, most_gpus))]
    costs = {degree: sketch.step_cost(degree, tokens_per_pass=None) for degree in degrees}
    row_bytes = rank_row_bytes(sketch.layout, has_compute_copy=hardware.is_gpu, optimizer=task_optimizer(task.file))
    taken, share = LOSS_HEAD_BYTES if hardware.is_gpu else 0, 1 - task.file.memory.margin
    problem = PackingProblem(
        trials=tuple(
            PackItem(
                trial_id=trial_id,
                work=sketch.works[trial_id],
                state_bytes={d: aligned_rank(trial.spec.adapter.num_rows) * row_bytes // d for d in degrees},
            )
            for trial_id, trial in enumerate(sketch.trials)
        ),
        num_gpus=num_gpus,
        cost=CostModel(
            by_num_gpus={degree: cost for degree, (cost, _) in costs.items()},
            sources={degree: source for degree, (_, source) in costs.items()},
        ),
        room_bytes={d: sketch.memory.device_bytes * share - sketch.memory.weight_bytes / d - taken for d in degrees},
        activation_bytes_per_token=sketch.memory.activation_bytes,
        token_budget=sketch.memory.sizes(1).executor.token_budget,
    )
    plan = plan_packs(problem)
    # the check shares no code with the planner: a plan that is wrong must not be shown
    check_pack_plan(plan, problem)
    return TaskPacks(
        task=task.name,
        plan=plan,
        bound_seconds=packing_lower_bound(problem).seconds,
        alone_seconds=planned.estimates[task.name].options[0].time.training,
        parameters={
            trial_id: (trial.spec.adapter.r, trial.spec.batch_size) for trial_id, trial in enumerate(sketch.trials)
        },
    )


def packs_json(packs: Sequence[TaskPacks]) -> list[dict[str, Any]]:
    return [
        {
            "task": own.task,
            "makespan_seconds": own.plan.makespan_seconds,
            "bound_seconds": own.bound_seconds,
            "approximation_ratio": own.plan.approximation_ratio,
            "one_gpu_training_seconds": own.alone_seconds,
            "policy": own.plan.policy,
            "packs": [{"trials": job.trial_ids, **where_and_when(job)} for job in own.plan.jobs],
        }
        for own in packs
    ]
