"""What a part of the measurements of several GPUs found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Part"]


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
