"""What a reward is: a function of answers that says how good each is, with the signature that TRL gives them.

    def reward(prompts, completions, **columns) -> list[float | None]

A prompt and its completion are texts, or lists of messages where the row's prompt is one. Columns are those of the
rows, a value for each completion; ``completion_ids`` are its tokens. None leaves a completion out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cohort.core.setting_fields import Refusal, SettingField

__all__ = ["COLUMNS_OF_ANSWERS", "RewardColumnError", "RewardFunction", "RewardKind", "expected_answer", "texts_of"]

RewardFunction = Callable[..., Sequence[float | None]]

COLUMNS_OF_ANSWERS = ("answer", "solution", "completion")
"""Where a row has its expected answer unless a reward says otherwise: the first of these that it has."""


class RewardColumnError(Exception):
    """A row lacks the column that a reward compares with; names both."""


@dataclass(frozen=True, kw_only=True)
class RewardKind:
    """A reward that has a name.

    Attributes:
        name: What users write.
        summary: Its meaning in one line.
        make: Returns the function for the options of an entry.
        options: The keys of an entry that it reads, besides ``function``, ``weight`` and ``name``.
        required: Those of them that an entry must have.
        together: Says what is wrong with the options together.
        package: The package it needs that Cohort does not, as pip calls it.
        module: How that package is imported.
        extra: The extra of Cohort that installs it.
        converses: Whether the function replies to answers until it gives the reward (:mod:`.conversing`).
    """

    name: str
    summary: str
    make: Callable[[Mapping[str, Any]], RewardFunction]
    options: Mapping[str, SettingField] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    together: Callable[[Mapping[str, Any]], Sequence[Refusal]] = lambda _: ()
    package: str = ""
    module: str = ""
    extra: str = ""
    converses: bool = False

    def with_defaults(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return all its options: those of an entry, and the defaults of the others."""
        return {name: options.get(name, setting.default) for name, setting in self.options.items()}


def texts_of(completions: Sequence[Any]) -> list[str]:
    """Return the texts of completions, which are lists of messages in conversations: the last one's content."""
    return [own if isinstance(own, str) else str(own[-1].get("content") or "") for own in completions]


def expected_answer(columns: Mapping[str, Sequence[Any]], *, column: str | None, place: int) -> str | None:
    """Return what completion ``place`` is compared with, as text; None where the row's value is null.

    Args:
        columns: A value for each completion.
        column: Its name; None for the first of :data:`COLUMNS_OF_ANSWERS` that the rows have.

    Raises:
        RewardColumnError: the rows have no such column.
    """
    names = COLUMNS_OF_ANSWERS if column is None else (column,)
    found = next((name for name in names if name in columns), None)
    if found is None:
        there = ", ".join(sorted(columns)) or "none"
        raise RewardColumnError(f"no column {' or '.join(names)} in the row; its columns are {there}")
    value = columns[found][place]
    if isinstance(value, list) and value and isinstance(value[-1], Mapping):
        # the completion of a conversation
        value = value[-1].get("content")
    return None if value is None else str(value)
