"""What computes the base model: a native family, or transformers behind packed linears; for the user and the record."""

from __future__ import annotations

from importlib.metadata import version

from cohort.machine.machine import Machine
from cohort.models.config import DecoderConfig

__all__ = ["model_computation", "model_note"]


def model_computation(config: DecoderConfig) -> str | None:
    """Return what computes the model, as the run record keeps it; None for a native family."""
    if config.bridged is None:
        return None
    return f"{config.architecture}, by transformers {version('transformers')}"


def model_note(config: DecoderConfig, machine: Machine) -> str | None:
    """Return one line about a model that transformers computes; None for a native family."""
    if config.bridged is None:
        return None
    how = "each sequence by itself" if machine.device.type == "cpu" else "all sequences of a pass as one row"
    left = config.bridged.left_alone
    alone = f"; text rows alone are trained on, and {', '.join(left)} left as it is" if left else ""
    return f"model: {model_computation(config)}, {how}: no native family computes it{alone}"
