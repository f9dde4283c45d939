"""How a validator says no: what was found, what is allowed, what to do; several at once if need be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, NoReturn

from pydantic_core import PydanticCustomError

from cohort.tasks.other_names import OTHER_WORDS

__all__ = ["REFUSAL_TYPE", "Refusal", "nearest_hint", "number_hint", "refusals_of", "refuse"]

REFUSAL_TYPE = "cohort_refusal"

# what a person may type for a number, in quotes or out of them
_NUMBER = re.compile(r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$")


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """One thing that is wrong below the field being validated.

    Attributes:
        found: What was there, quoted.
        allowed: What would be accepted.
        hint: What to do, as one imperative sentence.
        at: Where below the field: list positions and keys.
    """

    found: str
    allowed: str
    hint: str
    at: tuple[str | int, ...] = ()

    def below(self, key: str | int) -> Refusal:
        """Return the same one level further from the field."""
        return replace(self, at=(key, *self.at))


def refuse(*refusals: Refusal) -> NoReturn:
    """Raise what pydantic collects.

    Raises:
        PydanticCustomError: always; its context holds the refusals.
    """
    raise PydanticCustomError(REFUSAL_TYPE, "refused", {"refusals": refusals})


def refusals_of(context: Mapping[str, Any] | None) -> tuple[Refusal, ...]:
    """Return what :func:`refuse` put into an error's context."""
    return tuple((context or {}).get("refusals", ()))


def nearest_hint(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """Return the advice for an unknown word: the nearest known one, or to remove it."""
    known = list(known)
    own = OTHER_WORDS.get(word.lower(), "").rpartition(".")[2]
    near = [name for name in known if name == own]
    near = near or get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return f"Did you mean {prefix}{near[0]}? Rename it, or remove it." if near else "Remove it."


def number_hint(value: object, *, example: str) -> str:
    """Return the advice for a value that should have been a number."""
    if isinstance(value, str) and _NUMBER.match(value):
        return f"Remove the quotes: {value.strip()}."
    return f"Write for instance {example}."
