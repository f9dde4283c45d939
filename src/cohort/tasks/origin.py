"""Where each value of a task came from, so that messages can name file and line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cohort.core.place import KeyPath, Place

__all__ = ["TaskOrigin"]


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

    def where(self, path: KeyPath | str) -> Place:
        """Return the place of a key, ``task.yaml:12: search.space.r``, or ``command line --training.seed``.

        A key that is not there has the line of its section.
        """
        parts: KeyPath = tuple(path.split(".")) if isinstance(path, str) else path
        for length in range(len(parts), 0, -1):
            if parts[:length] in self.overrides:
                return Place(option=f"command line {self.overrides[parts[:length]]}", key=parts[length:])
        return Place(file=self.name, line=self.line(parts), key=parts)

    def line(self, path: KeyPath) -> int | None:
        """Return the line of the key, or of the nearest section around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None
