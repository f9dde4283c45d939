"""An adapter of a server, for those who ask what there is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["AdapterStatus"]


@dataclass(frozen=True, kw_only=True)
class AdapterStatus:
    """An adapter as the server lists it.

    Attributes:
        version: Grows by each replacement.
        residence: ``device``, ``host`` or ``disk``.
    """

    name: str
    path: Path | None
    r: int
    version: int
    residence: str
