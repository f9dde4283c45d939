"""The documents and their fenced blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY

__all__ = ["Block", "blocks_of", "documents"]

# the first line of a block that a machine without these cannot run; test_serving_page.py has a server
MARKERS = ("# hub", "# GPU and hub", "# GPU", "# shared data", "# server")


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block: its language, its lines, and what it needs (empty: nothing)."""

    language: str
    lines: tuple[str, ...]
    needs: str

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def documents() -> list[Path]:
    """Return every Markdown file for users, relative to the repository."""
    found = [REPOSITORY / "README.md", *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("examples/*/README.md")]
    return sorted(path.relative_to(REPOSITORY) for path in found)


def blocks_of(path: Path, language: str) -> list[Block]:
    """Return the fenced blocks of one language in a document."""
    text = (REPOSITORY / path).read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"^( *)```(\w*)\n(.*?)^ *```$", text, flags=re.MULTILINE | re.DOTALL):
        indent, name, body = match.groups()
        if name != language:
            continue
        lines = [line.removeprefix(indent) for line in body.splitlines()]
        needs = lines[0].removeprefix("# ") if lines and lines[0] in MARKERS else ""
        found.append(Block(language=name, lines=tuple(lines), needs=needs))
    return found
