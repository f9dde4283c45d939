"""A task's loss function before anything trains: found, and tried on three tokens."""

from __future__ import annotations

import numpy as np
import torch

from cohort.core.errors import Problem
from cohort.data.tokenised import Sample
from cohort.metrics import FunctionRefusedError
from cohort.tasks.task_file import TaskFile
from cohort.training.objectives.kinds.function import LossFailedError, forget_functions, loss_function, row_loss

__all__ = ["loss_identity", "loss_problems"]


def loss_problems(task: TaskFile) -> list[Problem]:
    """Return why the loss function of ``task`` cannot be used; it is called with log-probabilities of three tokens."""
    if task.objective.function is None:
        return []
    where, allowed = task.where("objective"), "a function of log_probs [n] and tokens [n] that returns a loss for each"
    # a notebook may have changed its file since the last run
    forget_functions()
    try:
        own = loss_function(task.objective.function)
        losses_n = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)
        tokens, trained = np.array([0, 1, 2, 3], dtype=np.int32), np.array([False, True, True, True])
        row_loss(own, losses_n, Sample(sample_id=0, tokens=tokens, trained=trained, source="three tokens"))
    except FunctionRefusedError as error:
        return [Problem(where=where, found=str(error), allowed=allowed, hint=error.hint)]
    except LossFailedError as error:
        return [Problem(where=where, found=str(error), allowed=allowed, hint="Correct the function.")]
    return []


def loss_identity(task: TaskFile) -> dict[str, str]:
    """Return the SHA-256 of the code of the task's loss function by ``loss:NAME``; nothing where it has none."""
    if task.objective.function is None:
        return {}
    own = loss_function(task.objective.function)
    return {f"loss:{own.name}": own.identity}
