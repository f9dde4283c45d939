"""Blobs on S3 (moto's server): whole or not there, and what a bucket, keys and a network that are away become."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cohort.store.blobs.blob_folder import BlobFolder, open_blobs
from cohort.store.blobs.s3 import s3_options
from cohort.store.errors import StoreError, StoreUnavailable
from tests.support.s3_server import S3Server, needs_s3, s3_server

NAME, OTHER = "ab/abcdef", "ab/abc123"
# three parts of an upload, so that some have arrived when the rest does not
LARGE = [bytes([number]) * (1 << 20) for number in range(20)]

# a client whose server is gone leaves sockets to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    needs_s3()
    with s3_server() as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)
        found.make_bucket("bucket")
        yield found
        # it keeps its connection by its arguments, and another module has another server
        pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()


@pytest.fixture
def folder(server: S3Server, tmp_path: Path) -> Iterator[BlobFolder]:
    yield open_blobs(f"s3://bucket/{tmp_path.name}")
    server.link.mend()
    server.refuse_keys(refuses=False)


def content(folder: BlobFolder, name: str) -> bytes:
    return b"".join(folder.read(name))


def test_files_and_folders_of_any_size(folder: BlobFolder, tmp_path: Path) -> None:
    for chunks in ([], [b"one", b"two"], LARGE):
        written = folder.write(NAME, chunks, limit=1 << 30)
        assert written.bytes == sum(map(len, chunks))
        assert content(folder, NAME) == b"".join(chunks)
    (tmp_path / "adapter" / "deep").mkdir(parents=True)
    (tmp_path / "adapter" / "config.json").write_text("{}")
    (tmp_path / "adapter" / "deep" / "weights").write_bytes(b"".join(LARGE))
    folder.write_folder(OTHER, tmp_path / "adapter")
    folder.fetch_folder(OTHER, tmp_path / "fetched")
    assert (tmp_path / "fetched" / "deep" / "weights").read_bytes() == b"".join(LARGE)
    assert list(folder.names()) == [OTHER, NAME]
    for name in (NAME, OTHER, OTHER):
        folder.remove(name)
    assert list(folder.names()) == []


def test_what_another_process_wrote_is_seen_at_once(folder: BlobFolder, server: S3Server) -> None:
    """This one has looked at the folder before; the other's client is one of its own."""
    s3fs = pytest.importorskip("s3fs")
    folder.write(NAME, [b"1"], limit=1)
    assert list(folder.names()) == [NAME]
    s3fs.S3FileSystem(skip_instance_cache=True).pipe(f"{folder.url}/{OTHER}", b"2")
    assert content(folder, OTHER) == b"2"
    assert list(folder.names()) == [OTHER, NAME]


def test_a_client_that_breaks_off_leaves_no_parts(folder: BlobFolder, server: S3Server) -> None:
    def broken() -> Iterator[bytes]:
        yield from LARGE
        raise ConnectionResetError("the client is gone")

    with pytest.raises(ConnectionResetError):
        folder.write(NAME, broken(), limit=1 << 30)
    assert list(folder.names()) == []
    assert server.uploads("bucket") == 0


@pytest.mark.parametrize("after_bytes", [100_000, 12 << 20, 20 << 20])
def test_a_network_that_is_lost_in_an_upload_leaves_nothing_that_is_not_collected(
    folder: BlobFolder, server: S3Server, after_bytes: int
) -> None:
    """In its first part, in its second, and in its last or when it is completed."""
    server.link.cut(after_bytes=after_bytes)
    with pytest.raises(StoreUnavailable, match="cannot be reached now"):
        folder.write(NAME, LARGE, limit=1 << 30)
    assert server.link.is_cut
    for use in (folder.check, lambda: folder.remove(NAME), lambda: content(folder, OTHER), lambda: [*folder.names()]):
        with pytest.raises(StoreUnavailable):
            use()
    server.link.mend()
    # no part of it is listed
    assert list(folder.names()) == []
    # as the collection does, a day later
    folder.remove(NAME)
    assert server.uploads("bucket") == 0
    folder.write(NAME, LARGE, limit=1 << 30)
    assert content(folder, NAME) == b"".join(LARGE)


def test_a_network_that_is_lost_while_a_blob_is_read(folder: BlobFolder, server: S3Server) -> None:
    folder.write(NAME, LARGE, limit=1 << 30)
    chunks = folder.read(NAME)
    assert next(chunks) == LARGE[0]
    server.link.cut()
    with pytest.raises(StoreUnavailable):
        list(chunks)
    server.link.mend()
    assert content(folder, NAME) == b"".join(LARGE)


def test_a_missing_bucket_is_no_lost_blob(server: S3Server, tmp_path: Path) -> None:
    folder = open_blobs("s3://nobody-made-this/cohort")
    for use in (
        folder.check,
        lambda: folder.write(NAME, [b"1"], limit=1),
        lambda: content(folder, NAME),
        # its row must stay: the bytes may be in the bucket that was meant
        lambda: folder.remove(NAME),
        lambda: folder.fetch_folder(NAME, tmp_path / "fetched"),
    ):
        with pytest.raises(StoreUnavailable, match="bucket does not exist"):
            use()
    assert not (tmp_path / "fetched").exists()


def test_a_blob_that_somebody_removed_is_named(folder: BlobFolder) -> None:
    with pytest.raises(StoreError, match=f"the blob {NAME} is not in {folder.url} any more") as raised:
        content(folder, NAME)
    assert not isinstance(raised.value, StoreUnavailable)


def test_keys_that_are_refused(folder: BlobFolder, server: S3Server) -> None:
    folder.write(NAME, [b"1"], limit=1)
    server.refuse_keys()
    for use in (folder.check, lambda: content(folder, NAME), lambda: folder.remove(NAME)):
        with pytest.raises(StoreUnavailable, match="cannot be reached now") as raised:
            use()
        assert isinstance(raised.value.__cause__, PermissionError)
    server.refuse_keys(refuses=False)
    assert content(folder, NAME) == b"1"


def test_a_server_that_takes_everything_and_answers_nothing_is_given_up(
    server: S3Server, folder: BlobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write(NAME, [b"1"], limit=1)
    # in place of 15 s
    monkeypatch.setattr(pytest.importorskip("s3fs").S3FileSystem, "read_timeout", 0.5)
    impatient = open_blobs(folder.url)
    server.link.swallows = True
    for use in (
        lambda: impatient.write(OTHER, [b"1"], limit=1),
        lambda: impatient.write(OTHER, LARGE, limit=1 << 30),
        lambda: content(impatient, NAME),
    ):
        with pytest.raises(StoreUnavailable, match="cannot be reached now"):
            use()
    server.link.mend()
    assert content(impatient, NAME) == b"1"


def test_s3_is_not_waited_for_long_unless_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert s3_options("/srv/blobs") == s3_options("gs://bucket/x") == {}
    pytest.importorskip("s3fs", reason="no s3fs: run make test-clients")
    for name in ("AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE"):
        monkeypatch.delenv(name, raising=False)
    assert s3_options("s3://bucket/x")["config_kwargs"]["retries"]["max_attempts"] == 2
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "7")
    assert "config_kwargs" not in s3_options("s3://bucket/x")
