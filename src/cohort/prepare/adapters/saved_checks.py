"""What ``lora.modules_to_save`` of a task means for its base model."""

from __future__ import annotations

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.modules_to_save.saved_modules import SavedModules
from cohort.models.config import DecoderConfig
from cohort.tasks.task_file import TaskFile

__all__ = ["saved_modules"]


def saved_modules(task: TaskFile, *, config: DecoderConfig, layout: AdapterLayout) -> SavedModules | None:
    """Return the modules that each trial trains a copy of; None where the task names none."""
    if not task.lora.modules_to_save:
        return None
    return SavedModules(
        names=task.lora.modules_to_save,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        width=layout.width,
    )
