"""What is neither a file nor a folder is named by what it is; nothing is opened."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from cohort.core.unusual_path import unusual_path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "itself").symlink_to("itself")
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to("first")
    (tmp_path / "broken").symlink_to("gone")
    (tmp_path / "good").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link-to-pipe").symlink_to("pipe")
    return tmp_path


@pytest.mark.parametrize("name", ["file", "folder", "good", "missing", "missing/below", "broken/below"])
def test_files_folders_and_nothing_are_not_unusual(place: Path, name: str) -> None:
    assert unusual_path(place / name) is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("itself", "a link that leads back to itself ({place}/itself -> itself)"),
        ("first", "a link that leads back to itself ({place}/first -> second)"),
        ("first/below", "a link that leads back to itself ({place}/first -> second)"),
        ("broken", "a link to gone, which does not exist"),
        ("pipe", "a pipe (FIFO)"),
        ("link-to-pipe", "a pipe (FIFO)"),
        ("file/below", "a path below {place}/file, which is a file"),
        ("pipe/below", "a path below {place}/pipe, which is no directory"),
        ("a" * 300, f"a name of 300 characters ({'a' * 60}...), more than the file system allows"),
        ("a/" * 3000, "characters, more than the file system allows"),
        ("a\0b", "a name with a null character"),
    ],
)
def test_anything_else_is_named(place: Path, name: str, found: str) -> None:
    unusual = unusual_path(place / name)
    assert unusual is not None
    assert found.format(place=place) in unusual.found
    assert unusual.hint


def test_devices_and_sockets_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = unusual_path(Path("/dev/zero"))
    assert device is not None
    assert device.found == "a device"
    # the name of a socket is short
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        found = unusual_path(Path("socket"))
    assert found is not None
    assert found.found == "a socket"
