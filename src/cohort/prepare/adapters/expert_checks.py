"""What adapters on experts (``lora.target_parameters``) cannot be trained with, as in PEFT."""

from __future__ import annotations

from collections.abc import Iterator

from cohort.adapters.spec import changes_base
from cohort.core.errors import Problem
from cohort.tasks.hyperparameters import SECTION_OF
from cohort.tasks.possible_values import possible_values
from cohort.tasks.task_file import TaskFile

__all__ = ["expert_problems"]


def expert_problems(task: TaskFile) -> Iterator[Problem]:
    """Yield the hyperparameters of some trial that PEFT has no form of for stacked parameters."""
    if not task.lora.target_parameters:
        return
    from_base = [str(name) for name in possible_values(task, "init_lora_weights") if changes_base(str(name))]
    # PEFT folds the factors into the weights of all experts, where an input of their own cannot be dropped
    found = {
        "lora_dropout": any(float(value) > 0 for value in possible_values(task, "lora_dropout")) and "above 0",
        "use_dora": True in possible_values(task, "use_dora") and "true",
        "use_vera": True in possible_values(task, "use_vera") and "true",
        "nblocks": any(task.block_diagonal(int(n)) is not None for n in possible_values(task, "nblocks")) and "above 1",
        "init_lora_weights": from_base and ", ".join(from_base),
    }
    for name, value in found.items():
        if value:
            section = "search.space" if name in task.search.space else SECTION_OF.get(name, "lora")
            yield Problem(
                where=task.where(f"{section}.{name}"),
                found=f"{name} {value} with target_parameters",
                allowed="plain LoRA or rsLoRA without dropout on experts; PEFT has no other form of it",
                hint=f"Remove {name}, or target_parameters.",
            )
