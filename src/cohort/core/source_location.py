"""Where a problem is: a file, a line, a key, an option or plain words; formatted only when it is shown."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["KeyPath", "Place", "dotted"]

KeyPath = tuple[str | int, ...]


def dotted(path: KeyPath) -> str:
    """Return ``("search", "space", "r", 1)`` as ``search.space.r[1]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place in the user's input. ``str()`` gives what messages show: ``task.yaml:12: search.space.r[1]``.

    A layer that knows keys but no file names the key alone; the layer that read the file adds file and line.

    Attributes:
        file: As the user typed it, or what stands for it (``Task 'a'``).
        line: The line in the file, or in the option's value, from 1.
        option: An option of the command line, e.g. ``--gpus``.
        key: Path of a key; whole numbers are positions in a list.
        text: What none of these says, in words.
    """

    file: str = ""
    line: int | None = None
    option: str = ""
    key: KeyPath = ()
    text: str = ""

    def __str__(self) -> str:
        source = ": ".join(part for part in (self.file, self.option) if part)
        source = source if self.line is None else f"{source}:{self.line}"
        return ": ".join(part for part in (source, dotted(self.key), self.text) if part)

    def below(self, *parts: str | int) -> Place:
        return replace(self, key=(*self.key, *parts))

    def at_key(self, *parts: str | int) -> Place:
        """Return the place of another key of the same file."""
        return replace(self, key=parts)

    def at_line(self, line: int) -> Place:
        return replace(self, line=line)

    def in_file(self, file: str) -> Place:
        """Return the place with ``file`` in front; a place in another file keeps that file's name as well."""
        if self.file == file:
            return self
        return Place(file=file, text=str(self)) if self.file else replace(self, file=file)
