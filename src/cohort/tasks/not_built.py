"""Documented features that this version does not have yet. To build one, remove its entry here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.core.errors import Problem
from cohort.core.place import Place

__all__ = ["NOT_BUILT_KEYS", "NotBuilt", "unbuilt_in", "unbuilt_values"]


@dataclass(frozen=True, kw_only=True)
class NotBuilt:
    """A documented key, the values that ask for what is missing, and what works today.

    Attributes:
        key: Dotted key of the task file.
        feature: What is missing, in words.
        allowed: The values that work.
        hint: What to write instead.
        words: Values that ask for the missing feature.
        asks_for: Whether another value does.
    """

    key: str
    feature: str
    allowed: str
    hint: str
    words: tuple[str, ...] = ()
    asks_for: Callable[[Any], bool] = lambda _: False

    def asks(self, value: Any) -> bool:
        """Return whether ``value`` asks for the missing feature."""
        return (isinstance(value, str) and value in self.words) or self.asks_for(value)


NOT_BUILT_KEYS: tuple[NotBuilt, ...] = (
    NotBuilt(
        key="objective",
        words=("dpo", "orpo", "cpo", "simpo", "kto"),
        feature="preference training",
        allowed="sft",
        hint="Write objective: sft.",
    ),
    NotBuilt(
        key="dataset.format",
        words=("preference",),
        feature="training on preference pairs",
        allowed="auto | messages | sharegpt | alpaca | prompt_completion | text",
        hint="Use rows with a prompt and a completion.",
    ),
)


def unbuilt_values(key: str) -> tuple[str, ...]:
    """Return the words that are documented for ``key`` and not built."""
    return tuple(word for entry in NOT_BUILT_KEYS if entry.key == key for word in entry.words)


def _lookup(data: Mapping[str, Any], key: str) -> Any:
    value: Any = data
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def unbuilt_in(data: Mapping[str, Any], *, where: Callable[[str], Place]) -> Iterator[Problem]:
    """Yield a problem for every value of ``data``, a task before validation, that asks for a missing feature."""
    for entry in NOT_BUILT_KEYS:
        value = _lookup(data, entry.key)
        # without the key the default holds, which asks for nothing that is missing
        if value is not None and entry.asks(value):
            yield Problem(
                where=where(entry.key),
                found=f"{value!r}: {entry.feature} is not supported yet",
                allowed=entry.allowed,
                hint=entry.hint,
            )
