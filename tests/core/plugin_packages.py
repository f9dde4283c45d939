"""Packages that offer exit rules and samplers, as an installer would leave them: a folder with their entry points."""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["install"]


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, *, package: str, group: str, points: dict[str, str]) -> None:
    """Make entry points (name to ``module:object``) findable while a test runs."""
    info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(folder))
