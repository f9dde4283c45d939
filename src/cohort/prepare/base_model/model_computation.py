"""What computes the base model: a native family, or transformers behind packed linears; for the user and the record."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from cohort.core.errors import Problem
from cohort.machine.machine import Machine
from cohort.models.config import DecoderConfig
from cohort.tasks.task_file import TaskFile

__all__ = ["model_computation", "model_note", "model_problems"]


def model_computation(config: DecoderConfig) -> str | None:
    """Return what computes the model, as the run record keeps it; None for a native family."""
    if config.bridged is None:
        return None
    own = f" and code of the checkpoint ({', '.join(config.bridged.own_code)})" if config.bridged.own_code else ""
    return f"{config.architecture}, by transformers {version('transformers')}{own}"


def model_note(config: DecoderConfig, machine: Machine) -> str | None:
    """Return one line about a model that transformers computes; None for a native family."""
    if config.bridged is None:
        return None
    how = "each sequence by itself" if machine.device.type == "cpu" else "all sequences of a pass as one row"
    left = config.bridged.left_alone
    alone = f"; text rows alone are trained on, and {', '.join(left)} left as it is" if left else ""
    return f"model: {model_computation(config)}, {how}: no native family computes it{alone}"


def model_problems(task: TaskFile, config: DecoderConfig) -> Iterator[Problem]:
    """Yield what a task asks of a model that transformers computes and only native families have."""
    if config.bridged is None:
        return
    missing = [name for name in task.lora.modules_to_save if name not in config.bridged.whole_modules]
    if missing:
        there = ", ".join(config.bridged.whole_modules)
        yield Problem(
            where=task.where("lora.modules_to_save"),
            found=f"{', '.join(missing)} with {config.architecture}, where that is no table of its own by this name",
            allowed=f"{there}, or adapters alone" if there else "adapters on the linears of its layers",
            hint=f"Write modules_to_save: [{there}]." if there else "Remove the key.",
        )
