"""Which rewards a task has and what their processes may use: what is sent to every executor of the task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["DEFAULT_MEMORY_LIMIT", "DEFAULT_TIME_LIMIT", "DEFAULT_TURNS", "PlannedReward", "RewardPlan"]

DEFAULT_TIME_LIMIT = 30.0
"""Seconds that one call of a reward may take."""
DEFAULT_MEMORY_LIMIT = 2 * 1024**3
"""Bytes that a reward's process may allocate."""

DEFAULT_TURNS = 8
"""Most answers of a conversation with an environment that has a name."""


@dataclass(frozen=True, kw_only=True)
class PlannedReward:
    """One reward of a task.

    Attributes:
        name: How records and messages call it; each name is there once.
        function: A name of Cohort's own, or ``module:function`` or ``/path/file.py:function``.
        weight: What its values are multiplied with before they are added; 0 measures it only.
        options: Its options as a JSON object, which can be hashed.
        cache: Whether a value may be used again for the same row and completion. False calls the function with all
            completions that are given together, each time.
        source: The program that defines the function, where a script did.
        turns: Most answers of a conversation, of a function that replies to them; 0 for one that rewards an answer.
    """

    name: str
    function: str
    weight: float = 1.0
    options: str = "{}"
    cache: bool = True
    source: str = ""
    turns: int = 0

    @property
    def converses(self) -> bool:
        """Whether it replies to answers until it gives the reward (:mod:`.conversing`)."""
        return self.turns > 0

    @property
    def shown(self) -> str:
        """The reward in words: its name, and its weight where that is not 1."""
        weight = "" if self.weight == 1 else " (measured only)" if not self.weight else f" (weight {self.weight:g})"
        turns = f" (up to {self.turns} turns)" if self.converses else ""
        return f"{self.name}{weight}{turns}"

    def call(self) -> dict[str, str]:
        """Return what names the function in a message to a process."""
        return {"function": self.function, "options": self.options, "source": self.source}

    def option_values(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.options)
        return found


@dataclass(frozen=True, kw_only=True)
class RewardPlan:
    """The rewards of a task.

    Attributes:
        time_limit: Seconds for one call of a function.
        memory_limit: Bytes that a process may allocate.
        workers: Processes that compute rewards.
        environment: Variables that the processes inherit besides those that every program needs.
        python: The interpreter of another environment that they run in; empty for this one.
    """

    functions: tuple[PlannedReward, ...]
    time_limit: float = DEFAULT_TIME_LIMIT
    memory_limit: int = DEFAULT_MEMORY_LIMIT
    workers: int = 2
    environment: tuple[str, ...] = ()
    python: str = ""

    @property
    def most_turns(self) -> int:
        """Most answers of a conversation; 0 where an answer is rewarded by itself."""
        return max(own.turns for own in self.functions)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(own.name for own in self.functions)

    @property
    def weights(self) -> Mapping[str, float]:
        return {own.name: own.weight for own in self.functions}
