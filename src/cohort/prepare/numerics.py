"""What exact numerics cannot be asked of, before anything is trained; and the note where they can.

A CPU has no other numerics, so there the key changes nothing and nothing is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from cohort.core.errors import Problem
from cohort.core.numerics import Numerics
from cohort.kernels.exact_product import has_exact_product
from cohort.machine.kernel_choices import exact_products
from cohort.machine.machine import Machine
from cohort.models.config import DecoderConfig
from cohort.tasks.task_file import TaskFile

__all__ = ["numerics_note", "numerics_problems"]

_FAST = "Write numerics: fast, or remove the key."


def numerics_problems(task: TaskFile, machine: Machine, *, config: DecoderConfig | None) -> Iterator[Problem]:
    """Yield why ``task`` cannot be trained with exact numerics on ``machine``; nothing where it does not ask.

    Args:
        config: The base model's, where it could be read.
    """
    if machine.numerics is not Numerics.EXACT or machine.device.type == "cpu":
        return
    found: list[tuple[str, str, str]] = []
    if not has_exact_product(machine.device):
        found.append((f"exact on a GPU without Triton's kernels: {exact_products(machine.device)}", "fast here", _FAST))
    if task.strategy in ("tensor", "pipeline"):
        whole = "exact with strategy: auto | replicas | adapter_parallel, whose GPUs divide no sum"
        found.append((f"exact with strategy: {task.strategy}", whole, f"{_FAST[:-1]}; or strategy: replicas."))
    if config is not None and config.pads_attention:
        what = f"exact with {config.family}, whose capped scores are computed in padded batches on a GPU"
        found.append((what, "exact with other families", _FAST))
    for what, allowed, hint in found:
        yield Problem(where=task.where("numerics"), found=what, allowed=allowed, hint=hint)


def numerics_note(machine: Machine) -> str | None:
    """Return one line about exact numerics on a GPU; None where there is nothing to say."""
    if machine.numerics is not Numerics.EXACT or machine.device.type == "cpu":
        return None
    return (
        "numerics: exact; a packed trial has the bits it would have alone on this model of GPU "
        f"({exact_products(machine.device)})"
    )
