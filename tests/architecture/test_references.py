"""What a docstring names as a module is there."""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
REFERENCE = re.compile(r":mod:`~?([\w.]+)`")


def names_a_module(name: str, *, file: Path) -> bool:
    """Return whether a name is a module: from the root, or from the package of ``file`` with or without a dot."""
    folder = SOURCE if name.startswith("cohort.") or name == "cohort" else file.parent
    path = folder.joinpath(*name.lstrip(".").split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_every_module_that_a_docstring_names_is_there() -> None:
    missing = [
        f"{file.relative_to(SOURCE)}: {name}"
        for file in sorted(SOURCE.rglob("*.py"))
        for name in REFERENCE.findall(file.read_text(encoding="utf-8"))
        if not names_a_module(name, file=file)
    ]
    assert missing == []
