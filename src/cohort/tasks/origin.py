"""Where each value of a task came from, so that messages can name file and line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cohort.tasks.yaml_lines import KeyPath

__all__ = ["TaskOrigin", "dotted"]


def dotted(path: KeyPath) -> str:
    """Return ``("search", "space", "r", 1)`` as ``search.space.r[1]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


@dataclass(frozen=True, kw_only=True)
class TaskOrigin:
    """A task file's name, its lines, and what the command line set.

    Attributes:
        name: How messages name the file, as the user typed it.
        lines: Line by path, from 1.
        overrides: Option by path, e.g. ``--training.seed``.
    """

    name: str
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    overrides: Mapping[KeyPath, str] = field(default_factory=dict)

    def where(self, path: KeyPath | str) -> str:
        """Return ``task.yaml:12: search.space.r``, or ``command line --training.seed``.

        A key that is not there has the line of its section.
        """
        parts: KeyPath = tuple(path.split(".")) if isinstance(path, str) else path
        for length in range(len(parts), 0, -1):
            if parts[:length] in self.overrides:
                rest = dotted(parts[length:])
                return f"command line {self.overrides[parts[:length]]}" + (f": {rest}" if rest else "")
        line = self.line(parts)
        place = self.name if line is None else f"{self.name}:{line}"
        return f"{place}: {dotted(parts)}" if parts else place

    def line(self, path: KeyPath) -> int | None:
        """Return the line of the key, or of the nearest section around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None
