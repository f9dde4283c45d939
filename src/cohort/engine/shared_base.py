"""A base model that a session finds loaded, and that others compute with between its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cohort.engine.turns.step_turns import StepTurns
from cohort.prepare.base_model.loaded_backbone import LoadedBackbone

__all__ = ["SharedBase"]


@dataclass(frozen=True, kw_only=True)
class SharedBase:
    """What a session is given of it.

    Attributes:
        backbone: The model, with the sizes of the executor that there is room for.
        turns: Who steps when.
        before_pass: Called before each pass of a turn: requests may come first.
    """

    backbone: LoadedBackbone
    turns: StepTurns
    before_pass: Callable[[], None] = lambda: None
