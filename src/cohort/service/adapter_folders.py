"""Adapter directories as the command line names them, and what their cards say of their base model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from cohort.adapters.peft_files.peft_format import CONFIG_FILE
from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place

__all__ = ["adapter_folders", "recorded_base_hash"]

_HASH = re.compile(r"^\| model hash \| \"?`?([0-9a-f]{64})`?\"? \|$", re.MULTILINE)


def adapter_folders(given: Sequence[str]) -> list[tuple[str, Path]]:
    """Return name and directory of each adapter: of ``NAME=DIRECTORY``, a directory, or a folder of directories.

    Raises:
        InputError: there is no adapter, or two have one name; all of them at once.
    """
    problems: list[Problem] = []
    found: dict[str, Path] = {}
    for text in given:
        name, separator, path_text = text.partition("=")
        path = Path(path_text if separator else text)
        own = [(name, path)] if separator else _named(path)
        if not own or not (own[0][1] / CONFIG_FILE).is_file():
            problems.append(
                _problem(
                    text,
                    found="no adapter" if path.is_dir() else "no such directory",
                    allowed=f"a directory with {CONFIG_FILE}, a folder of such directories, or NAME=DIRECTORY",
                    hint="Name the adapter's directory, such as RUN_DIR/best.",
                )
            )
            continue
        for each, folder in own:
            if each in found:
                problems.append(
                    _problem(
                        text,
                        found=f"a second adapter named {each!r}, besides {found[each]}",
                        allowed="one adapter for each name",
                        hint="Give it another name: NAME=DIRECTORY.",
                    )
                )
            found[each] = folder
    if problems:
        raise InputError(problems)
    return list(found.items())


def _named(path: Path) -> list[tuple[str, Path]]:
    if (path / CONFIG_FILE).is_file():
        resolved = path.resolve()
        # the best adapter of a run has the run's name
        name = resolved.parent.name if resolved.name == "best" else resolved.name
        return [(name, path)]
    if not path.is_dir():
        return []
    return [(folder.name, folder) for folder in sorted(path.iterdir()) if (folder / CONFIG_FILE).is_file()]


def _problem(text: str, *, found: str, allowed: str, hint: str) -> Problem:
    return Problem(where=Place(option="command line --adapters", text=text), found=found, allowed=allowed, hint=hint)


def recorded_base_hash(folder: Path) -> str | None:
    """Return the SHA-256 of the base model that an adapter's card names; None where it names none."""
    card = folder / "README.md"
    try:
        match = _HASH.search(card.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return None if match is None else match[1]
