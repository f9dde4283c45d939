"""What ``auto`` means: which values of each hyperparameter are searched, and what a multiplier multiplies.

The sweep has early exit, so most trials cost a few steps. ``n_epochs`` is searched along each trial: the learning rate
stays constant, so that a trial of three epochs passes through that of one, and its best evaluation is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cohort.service.fine_tuning.schema import AUTO, DpoHyperparameters, Hyperparameters

__all__ = ["BASE_RATES", "auto_space", "chosen_hyperparameters", "most_epochs"]

BASE_RATES: Mapping[str, float] = {"supervised": 2e-4, "dpo": 5e-5}
"""Learning rate of ``learning_rate_multiplier`` 1.0, by method."""

# from what large models like to what tiny ones need: best rates of LoRA lie two orders of magnitude apart
_MULTIPLIERS: Mapping[str, tuple[float, ...]] = {
    "supervised": (0.25, 1.0, 2.5, 5.0, 15.0, 50.0),
    "dpo": (0.1, 0.4, 1.0, 4.0, 10.0, 40.0),
}
_BATCH_SIZES = (4, 16)
_BETAS = (0.05, 0.1, 0.3)
# fewer steps than this leave nothing to compare
_LEAST_STEPS_OF_AN_EPOCH = 4
# (rows up to which, epochs)
_EPOCHS = ((200, 10), (2_000, 5), (50_000, 3))
_EPOCHS_OF_MANY = 1


def most_epochs(num_rows: int) -> int:
    """Return the epochs of a trial whose ``n_epochs`` is ``auto``."""
    return next((epochs for rows, epochs in _EPOCHS if num_rows <= rows), _EPOCHS_OF_MANY)


def auto_space(asked: Hyperparameters, *, method: str, num_rows: int) -> dict[str, Any]:
    """Return ``search.space`` for what is ``auto``; what is a number is not in it."""
    space: dict[str, Any] = {}
    if asked.learning_rate_multiplier == AUTO:
        space["learning_rate"] = [round(BASE_RATES[method] * each, 12) for each in _MULTIPLIERS[method]]
    if asked.batch_size == AUTO:
        fitting = [size for size in _BATCH_SIZES if size * _LEAST_STEPS_OF_AN_EPOCH <= num_rows]
        space["batch_size"] = fitting or [1]
    if isinstance(asked, DpoHyperparameters) and asked.beta == AUTO:
        space["beta"] = list(_BETAS)
    return space


def chosen_hyperparameters(
    asked: Hyperparameters, *, method: str, trial: Mapping[str, Any], epochs: float
) -> dict[str, Any]:
    """Return the hyperparameters of the winner in OpenAI's words.

    Args:
        trial: Every hyperparameter of the winning trial by its task-file name.
        epochs: Passes over the rows that its best evaluation had made.
    """
    found: dict[str, Any] = {
        "n_epochs": max(1, -int(-epochs // 1)) if asked.n_epochs == AUTO else asked.n_epochs,
        "batch_size": trial.get("batch_size", asked.batch_size),
        "learning_rate_multiplier": asked.learning_rate_multiplier,
    }
    if "learning_rate" in trial:
        found["learning_rate_multiplier"] = float(f"{trial['learning_rate'] / BASE_RATES[method]:.6g}")
    if isinstance(asked, DpoHyperparameters):
        found["beta"] = trial.get("beta", asked.beta)
    return found
