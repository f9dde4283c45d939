"""Files that are whole or absent."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cohort.core import durable_files
from cohort.core.durable_files import (
    atomic_directory,
    atomic_file,
    finished_path,
    partial_paths,
    remove_leftovers,
    write_bytes,
    write_text,
)
from cohort.core.errors import StorageFullError


@pytest.mark.parametrize("knows_links", [True, False])
def test_whoever_was_first_keeps_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows_links: bool) -> None:
    def refuse(source: object, target: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not knows_links:
        monkeypatch.setattr("os.link", refuse)
    target = tmp_path / "queue.db"
    with atomic_file(target, replaces=False) as partial:
        partial.write_text("first")
    assert target.read_text() == "first"
    with atomic_file(target) as partial:
        partial.write_text("second")
    assert target.read_text() == "second"
    if knows_links:
        with atomic_file(target, replaces=False) as partial:
            partial.write_text("third")
        assert target.read_text() == "second"
    assert [entry.name for entry in tmp_path.iterdir()] == ["queue.db"]


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    write_text(path, "first é")
    assert path.read_text(encoding="utf-8") == "first é"
    with pytest.raises(UnicodeEncodeError), atomic_file(path) as partial:
        partial.write_text("half \ud800", encoding="utf-8")
    assert path.read_text(encoding="utf-8") == "first é"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]


@pytest.mark.parametrize("swap", [True, False], ids=["swapped", "renamed twice"])
def test_a_directory_is_replaced_whole(tmp_path: Path, swap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not swap:
        monkeypatch.setattr(durable_files, "_exchange", lambda first, second: False)
    best = tmp_path / "best"
    for content in ("1", "2"):
        with atomic_directory(best) as partial:
            (partial / "sub").mkdir()
            (partial / "sub" / content).write_text(content)
            assert not best.exists() or os.listdir(best / "sub") == ["1"]
    assert os.listdir(best / "sub") == ["2"]
    with pytest.raises(UnicodeEncodeError), atomic_directory(best) as partial:
        (partial / "half").write_text("half \ud800", encoding="utf-8")
    assert os.listdir(best) == ["sub"]
    assert os.listdir(tmp_path) == ["best"]


def _os_error(number: int) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_left_names_the_path_and_leaves_nothing(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.csv"
    write_bytes(path, b"old")
    monkeypatch.setattr(durable_files, "flush_to_disk", _os_error(number))
    with pytest.raises(StorageFullError, match=r"results\.csv.*cohort resume"):
        write_bytes(path, b"new")
    with pytest.raises(StorageFullError, match="best"), atomic_directory(tmp_path / "best") as partial:
        (partial / "file").touch()
    assert os.listdir(tmp_path) == ["results.csv"]
    assert path.read_bytes() == b"old"


def test_a_library_s_own_words_for_a_full_disk_count_and_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(StorageFullError), atomic_file(tmp_path / "a"):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(PermissionError), atomic_file(tmp_path / "a"):
        raise PermissionError(errno.EACCES, "no")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_real_full_device_is_recognised() -> None:
    with (
        pytest.raises(StorageFullError),
        durable_files.storage_full_named("/dev/full"),
        open("/dev/full", "wb") as full,
    ):
        full.write(b"x" * 10_000)


_WRITER = """
import os
import sys
from cohort.core.durable_files import atomic_directory

with atomic_directory(sys.argv[1]) as partial:
    (partial / "weights").write_bytes(b"half")
    os._exit(9)
"""


def test_the_next_writer_of_a_directory_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    target = tmp_path / "merged"
    assert subprocess.run([sys.executable, "-c", _WRITER, target]).returncode == 9
    (left,) = partial_paths(target)
    with atomic_directory(target) as fresh:
        # it may be that of another machine, which has only now written to it
        assert partial_paths(target) == sorted([left, fresh])
    os.utime(left / "weights", (0, 0))
    os.utime(left, (0, 0))
    with atomic_directory(target) as slow:
        (slow / "weights").write_bytes(b"whole")
        os.utime(slow / "weights", (0, 0))
        os.utime(slow, (0, 0))
        assert partial_paths(target) == [slow]
        # one that lives is left alone, however long it has not written
        with atomic_directory(target):
            assert len(partial_paths(target)) == 2
        remove_leftovers(tmp_path)
        assert partial_paths(target) == [slow]
    assert partial_paths(target) == []
    assert (target / "weights").read_bytes() == b"whole"
    left.mkdir()
    remove_leftovers(tmp_path)
    assert partial_paths(target) == []


def test_what_a_killed_writer_left_of_a_path_is_found(tmp_path: Path) -> None:
    left = [tmp_path / ".a[1].json.x_1.partial", tmp_path / ".a[1].json.y2.partial"]
    left[0].write_text("half")
    left[1].mkdir()
    for other in ("a[1].json", ".a1.json.x.partial", ".b.json.x.partial", ".a[1].json.replaced"):
        (tmp_path / other).write_text("other")
    assert partial_paths(tmp_path / "a[1].json") == left
    assert partial_paths(tmp_path / "nowhere" / "a") == []


def test_a_message_names_the_file_that_is_wanted_not_the_one_being_written() -> None:
    assert finished_path("runs/.t.yaml.due4hu5v.partial") == "runs/t.yaml"
    assert finished_path("runs/t.yaml") == "runs/t.yaml"
