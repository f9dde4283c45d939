"""An export is put where nothing is, and not into the working directory."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from cohort.adapter_files.export_place import require_place
from cohort.core.errors import InputError


def test_new_and_empty_directories_are_places(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    require_place(tmp_path / "empty")
    require_place(tmp_path / "deep" / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_directory_that_cannot_be_replaced_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "closed")
    with pytest.raises(InputError, match="found a directory on which a file system is mounted"):
        require_place(tmp_path / "closed")
    monkeypatch.undo()
    # root may write everywhere
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)
    with pytest.raises(InputError, match="found a directory in one that cannot be written"):
        require_place(tmp_path / "closed")


@pytest.mark.parametrize(
    ("place", "found", "hint"),
    [
        ("full/file", "a file", "Choose another directory"),
        ("full", "a directory that is not empty", "or delete this one"),
        ("run", "a directory that is not empty", "Choose another directory.$"),
        ("", "the working directory", r"such as adapter\.$"),
        ("../here", "the working directory", r"such as \.\./here/adapter\.$"),
        ("link", "a link to a directory", "such as link/adapter"),
    ],
)
def test_others_are_not(place: str, found: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("full/file", "run/run.db", "run/task.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("here")
    here = place in ("", "../here")
    monkeypatch.chdir(tmp_path / "here" if here else tmp_path)
    with pytest.raises(
        InputError, match=f"found {found}; allowed: a directory that is new, or empty and can be replaced"
    ) as raised:
        require_place(Path(place))
    (problem,) = raised.value.problems
    assert str(problem.where) == f"-o {Path(place)}"
    assert re.search(hint, problem.hint)
