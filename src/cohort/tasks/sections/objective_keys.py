"""The numbers and words of objectives: which of them each objective reads, and what they are where a task does not say.

A task file has them in its ``objective`` section, ``search.space`` may search over them. Names and defaults are TRL's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cohort.core.setting_fields import choice, number
from cohort.data.settings import RowReading

__all__ = ["LOSS_TYPES", "OBJECTIVE_VALUES", "READS", "REFERENCE_OBJECTIVES", "SMOOTHED", "ObjectiveKeys"]

LOSS_TYPES: Mapping[str, tuple[str, ...]] = {
    "dpo": ("sigmoid", "hinge", "ipo", "robust"),
    "cpo": ("sigmoid", "hinge", "ipo"),
    "kto": ("kto", "apo_zero_unpaired"),
}
SMOOTHED = ("sigmoid", "robust")
"""The loss types that read ``label_smoothing``."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveKeys:
    """Keys of the ``objective`` section that can be searched."""

    beta: float = number(
        0.1, "how strongly a trial is held to its reference; orpo: weight of the odds ratio", minimum=None
    )
    loss_type: str = choice(
        "sigmoid",
        "dpo, cpo, kto: form of the loss",
        options=tuple(dict.fromkeys(kind for kinds in LOSS_TYPES.values() for kind in kinds)),
    )
    label_smoothing: float = number(0.0, "dpo, cpo, simpo: probability that a label is wrong", below=0.5)
    simpo_gamma: float = number(0.5, "simpo: reward margin that the better answer should have")
    cpo_alpha: float = number(1.0, "cpo, simpo: weight of the better answers' own loss")
    desirable_weight: float = number(1.0, "kto: weight of desirable rows")
    undesirable_weight: float = number(1.0, "kto: weight of undesirable rows")


OBJECTIVE_VALUES: Mapping[str, Mapping[str, Any]] = {
    "sft": {},
    "dpo": {"beta": 0.1, "loss_type": "sigmoid", "label_smoothing": 0.0},
    "orpo": {"beta": 0.1},
    "cpo": {"beta": 0.1, "loss_type": "sigmoid", "label_smoothing": 0.0, "cpo_alpha": 1.0},
    "simpo": {"beta": 0.1, "simpo_gamma": 0.5, "label_smoothing": 0.0, "cpo_alpha": 0.0},
    "function": {},
    "kto": {"beta": 0.1, "loss_type": "kto", "desirable_weight": 1.0, "undesirable_weight": 1.0},
}
"""The keys that each objective reads, with their values where a task has none."""

READS: Mapping[str, RowReading] = {
    **dict.fromkeys(OBJECTIVE_VALUES, RowReading.PAIRS),
    **dict.fromkeys(("sft", "function"), RowReading.ANSWERS),
    "kto": RowReading.LABELS,
}
"""What each objective reads of a row."""

REFERENCE_OBJECTIVES = ("dpo", "kto")
"""The objectives that compare with a reference model."""
