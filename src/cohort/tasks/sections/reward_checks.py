"""What an objective that draws answers and the rest of a task must agree on: rewards, and what compares trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cohort.core.setting_fields import Refusal
from cohort.metrics import REWARD, own_metrics
from cohort.training.objectives.declaration import OBJECTIVE_DECLARATIONS

if TYPE_CHECKING:
    from cohort.tasks.task_file import TaskFile

__all__ = ["choose_by_reward", "reward_refusals"]


def choose_by_reward(data: dict[str, Any]) -> None:
    """Set ``evaluation.metric`` to the reward, in place, where the objective draws answers and the task names none."""
    objective, evaluation = data.get("objective"), data.get("evaluation")
    name = objective.get("type") if isinstance(objective, Mapping) else objective
    entry = OBJECTIVE_DECLARATIONS.known(name) if isinstance(name, str) else None
    if entry is None or not entry.samples_answers:
        return
    if evaluation is None or (isinstance(evaluation, Mapping) and "metric" not in evaluation):
        data["evaluation"] = {**(evaluation or {}), "metric": REWARD}


def reward_refusals(task: TaskFile) -> Iterator[Refusal]:
    """Yield what does not fit rewards, or the lack of them; ``at`` is the key."""
    objective, declared = task.objective.type, task.objective.declared
    if not declared.samples_answers:
        if task.rewards is not None:
            drawing = [entry.name for entry in OBJECTIVE_DECLARATIONS.usable() if entry.samples_answers]
            yield Refusal(
                found=f"rewards with objective: {objective}, which draws no answers",
                allowed=f"rewards with objective: {' or '.join(drawing)}",
                hint=f"Remove rewards, or write objective: {drawing[0]}.",
                at=("rewards",),
            )
        if task.evaluation.num_generations:
            yield Refusal(
                found=f"{task.evaluation.num_generations}, with objective: {objective}, which draws no answers",
                allowed="0",
                hint="Remove num_generations.",
                at=("evaluation", "num_generations"),
            )
        return
    if task.rewards is None:
        yield Refusal(
            found=f"objective: {objective} without rewards",
            allowed="rewards: a reward, or a list of them",
            hint="Write for example rewards: [exact_match], or rewards: my_rewards:correct.",
            at=("objective",),
        )
    elif all(own.weight == 0 for own in task.rewards.functions):
        yield Refusal(
            found="rewards of weight 0 alone",
            allowed="at least one reward with another weight",
            hint="Give a reward a weight such as 1.",
            at=("rewards",),
        )
    values = task.objective.values
    if values.get("loss_type") == "cispo" and not values["epsilon_high"] and "epsilon_high" not in task.search.space:
        yield Refusal(
            found="loss_type: cispo without epsilon_high, so that no ratio would count more than epsilon",
            allowed="the largest ratio, such as 5.0",
            hint="Write epsilon_high: 5.0.",
            at=("objective", "loss_type"),
        )
    if task.evaluation.metric != REWARD:
        name = task.evaluation.metric
        hint = "Write metric: reward, or remove the key."
        if name != "loss" and name in own_metrics():
            hint += " A reward of weight 0 is measured only."
        yield Refusal(
            found=f"metric: {name} with {objective}, whose trials are compared by their rewards",
            allowed=REWARD,
            hint=hint,
            at=("evaluation", "metric"),
        )
    if others := [name for name in task.evaluation.metrics if name != REWARD]:
        yield Refusal(
            found=f"{others[0]} with {objective}, whose answers are measured by rewards",
            allowed="rewards; one of weight 0 is measured only",
            hint=f"Remove {others[0]}, and add a reward of weight 0.",
            at=("evaluation", "metrics"),
        )
