"""Bytes in a folder and in object storage (fsspec's own in memory): whole or not there, and typed errors."""

from __future__ import annotations

import errno
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from cohort.core import durable_files
from cohort.core.errors import InputError
from cohort.store.blobs.blob_folder import BlobFolder, open_blobs
from cohort.store.errors import StorageFull, StoreError, StoreUnavailable, TooLargeError

NAME = "ab/abcdef"


@pytest.fixture(params=["folder", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlobFolder]:
    if request.param == "folder":
        yield open_blobs(tmp_path / "blobs")
    else:
        yield open_blobs(f"memory://{tmp_path.name}")
        fsspec.filesystem("memory").rm("/", recursive=True)


def test_what_was_written_is_read(folder: BlobFolder) -> None:
    chunks = [b"one", b"", b"two" * 1000]
    written = folder.write(NAME, iter(chunks), limit=10_000)
    content = b"".join(chunks)
    assert (written.bytes, written.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert b"".join(folder.read(NAME, chunk_bytes=7)) == content
    assert list(folder.names()) == [NAME]
    folder.remove(NAME)
    folder.remove(NAME)
    assert list(folder.names()) == []


def test_a_stream_that_is_too_long_leaves_nothing_and_is_read_no_further(folder: BlobFolder) -> None:
    read = []

    def chunks() -> Iterator[bytes]:
        for number in range(100):
            read.append(number)
            yield bytes(10)

    with pytest.raises(TooLargeError, match="more than the 25 B that"):
        folder.write(NAME, chunks(), limit=25)
    assert read == [0, 1, 2]
    assert list(folder.names()) == []
    assert folder.write(NAME, [bytes(25)], limit=25).bytes == 25


@pytest.mark.parametrize("error", [ConnectionResetError("the client is gone"), ValueError("x"), KeyboardInterrupt()])
def test_a_stream_that_breaks_off_leaves_nothing_and_its_error_is_its_own(
    folder: BlobFolder, error: BaseException
) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"one"
        raise error

    with pytest.raises(type(error)) as raised:
        folder.write(NAME, chunks(), limit=100)
    assert raised.value is error
    assert list(folder.names()) == []


def test_a_folder_of_files_is_one_blob(folder: BlobFolder, tmp_path: Path) -> None:
    source = tmp_path / "adapter"
    (source / "deep").mkdir(parents=True)
    (source / "config.json").write_text("{}")
    (source / "deep" / "weights").write_bytes(b"123")
    written = folder.write_folder(NAME, source)
    assert written.bytes == 5
    folder.fetch_folder(NAME, tmp_path / "fetched")
    found = {
        path.relative_to(tmp_path / "fetched").as_posix(): path.read_bytes()
        for path in (tmp_path / "fetched").rglob("*")
        if path.is_file()
    }
    assert found == {"config.json": b"{}", "deep/weights": b"123"}
    assert list(folder.names()) == [NAME]
    folder.remove(NAME)
    assert list(folder.names()) == []
    with pytest.raises(StoreError, match="removed outside of the store"):
        folder.fetch_folder(NAME, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_blob_that_is_not_there_is_named(folder: BlobFolder) -> None:
    with pytest.raises(StoreError, match=f"the blob {NAME} is not in"):
        list(folder.read(NAME))


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "ab/../../x"])
def test_names_stay_below_the_root(folder: BlobFolder, name: str) -> None:
    with pytest.raises(ValueError, match="no name of a blob"):
        folder.write(name, [b"x"], limit=1)


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = open_blobs(tmp_path / "blobs")
    monkeypatch.setattr(durable_files, "flush_to_disk", full)
    with pytest.raises(StorageFull, match=r"no space is left in .*blobs") as raised:
        folder.write(NAME, [b"x"], limit=1)
    assert raised.value.retry_after_seconds > 0
    assert list(folder.names()) == []


_WRITER = """
import os
import sys
from cohort.store.blobs.blob_folder import open_blobs

def chunks():
    yield b"one"
    os._exit(9)

open_blobs(sys.argv[1]).write(sys.argv[2], chunks(), limit=100)
"""


def test_what_a_killed_writer_left_has_the_name_of_its_blob_and_goes_with_it(tmp_path: Path) -> None:
    folder = open_blobs(tmp_path / "blobs")
    written = folder.write(other := f"{NAME}0", [b"x"], limit=1)
    assert subprocess.run([sys.executable, "-c", _WRITER, tmp_path / "blobs", NAME]).returncode == 9
    # of a folder of files, too
    (tmp_path / "blobs" / f"{NAME[:2]}/.{NAME[3:]}.x1.partial" / "deep").mkdir(parents=True)
    assert len(list((tmp_path / "blobs").rglob(".*"))) == 2
    assert list(folder.names()) == [NAME, other]
    folder.remove(NAME)
    assert list((tmp_path / "blobs").rglob(".*")) == []
    assert list(folder.names()) == [other]
    assert len(b"".join(folder.read(other))) == written.bytes


def test_a_check_leaves_that_of_another_process_alone(tmp_path: Path) -> None:
    folder = open_blobs(tmp_path / "blobs")
    folder.check()
    theirs = tmp_path / "blobs" / "checks" / ".writable.x1.partial"
    theirs.write_bytes(b"cohort")
    folder.check()
    assert theirs.exists()


class _FailingStorage:
    """Object storage that is full, or gone."""

    protocol = "s3"

    def __init__(self, error: OSError) -> None:
        self._error = error

    def open(self, path: str, mode: str, **_: int) -> Any:
        raise self._error

    def ls(self, path: str, detail: bool) -> Any:
        raise self._error

    def find(self, path: str) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "full"), StorageFull),
        (OSError(errno.EDQUOT, "quota"), StorageFull),
        (ConnectionRefusedError("refused"), StoreUnavailable),
        (TimeoutError("timed out"), StoreUnavailable),
        (PermissionError("expired credentials"), StoreUnavailable),
    ],
)
def test_object_storage_that_fails(error: OSError, kind: type[StoreError]) -> None:
    folder = BlobFolder(_FailingStorage(error), "bucket", url="s3://bucket")
    for use in (
        lambda: folder.write(NAME, [b"x"], limit=1),
        lambda: list(folder.read(NAME)),
        lambda: folder.remove(NAME),
        lambda: list(folder.names()),
        folder.check,
    ):
        with pytest.raises(kind, match="s3://bucket"):
            use()


def test_an_unknown_kind_of_url_is_refused() -> None:
    with pytest.raises(InputError, match="blobs: found 'nothing://x'"):
        open_blobs("nothing://x")
