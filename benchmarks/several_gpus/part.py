"""What a part of the measurements of several GPUs found."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Part", "keep"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Results of one part.

    Attributes:
        headline: The numbers that answer its question.
        rows: Everything measured.
        columns: Of the rows, what is printed.
        notes: How it was measured.
    """

    headline: dict[str, float]
    rows: list[dict[str, Any]]
    columns: Sequence[str]
    notes: dict[str, Any] = field(default_factory=dict)


def keep(options: argparse.Namespace, part: Part) -> None:
    """Write what was found until now, so that a part which is stopped leaves it."""
    save: Callable[[Part], None] | None = getattr(options, "save", None)
    if save is not None:
        save(part)
