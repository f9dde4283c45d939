"""Where the bytes are: a folder, or object storage that fsspec knows (``s3://``, ``gs://``, ``az://``, ``memory://``).

In a folder, a blob appears whole under its name when it is on the disk. In object storage a file appears whole when its
upload is completed, and of a folder of files the row in the database says that it is complete.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cohort.core.durable_files import atomic_directory, atomic_file, finished_path, partial_paths
from cohort.core.errors import InputError, Problem, StorageFullError
from cohort.store.blobs.s3 import bound_patience, end_uploads, s3_options
from cohort.store.errors import StorageFull, StoreError, StoreUnavailable, TooLargeError

__all__ = ["BlobFolder", "Written", "open_blobs"]

_CHUNK_BYTES = 1 << 20
# of an upload to object storage: memory holds one of them. S3 takes no part below 5 MiB, and 10,000 parts of a file
_PART_BYTES = 8 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written under a name."""

    bytes: int
    sha256: str


class BlobFolder:
    """Writes, reads and removes bytes by name. Names are random and never a client's."""

    def __init__(self, filesystem: Any, root: str, *, url: str) -> None:
        """Take a file system of fsspec, or one that behaves like it; ``root`` is the folder in it."""
        self._files = filesystem
        self._root = root.rstrip("/")
        protocols = filesystem.protocol if isinstance(filesystem.protocol, tuple | list) else (filesystem.protocol,)
        self._is_local = "file" in protocols or "local" in protocols
        self.url = url

    def write(self, name: str, chunks: Iterable[bytes], *, limit: int) -> Written:
        """Write a stream; memory holds one chunk of it, in object storage 8 MiB.

        Raises:
            TooLargeError: there are more than ``limit`` bytes; nothing is kept.
            StorageFull: there is no room; nothing is kept.
            StoreUnavailable: the place cannot be reached.
        """
        with self._typed():
            if self._is_local:
                with atomic_file(self._path(name)) as partial, open(partial, "wb") as stream:
                    return _pour(chunks, stream, limit)
            with self._remote_stream(name) as stream:
                return _pour(chunks, stream, limit)

    @contextmanager
    def _remote_stream(self, name: str) -> Iterator[IO[bytes]]:
        stream = self._files.open(self._path(name), "wb", block_size=_PART_BYTES)
        try:
            yield stream
            stream.close()
        except BaseException as error:
            # storage that is away would be asked in vain, and for long: the collection removes what is there
            if not _is_of_place(error):
                with suppress(Exception):
                    stream.discard()
                # where names appear at once, in memory, part of it is there
                with suppress(Exception):
                    self._files.rm_file(self._path(name))
            # closing would complete the upload of a part
            with suppress(Exception):
                stream.closed = True
            raise

    def write_folder(self, name: str, folder: Path) -> Written:
        """Write the files of a folder (an adapter), of any depth, under one name.

        Returns:
            Their bytes in total, and the SHA-256 of their names and digests in order.
        """
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        with self._typed():
            if self._is_local:
                with atomic_directory(self._path(name)) as partial:
                    return _pour_folder(paths, folder, lambda relative: _made(partial / relative))
            return _pour_folder(paths, folder, lambda relative: self._remote_stream(f"{name}/{relative}"))

    def read(self, name: str, *, chunk_bytes: int = _CHUNK_BYTES) -> Iterator[bytes]:
        """Yield a blob's bytes.

        Raises:
            StoreError: there is no such blob: it was removed outside of the store.
            StoreUnavailable: the place cannot be reached.
        """
        with self._typed(name), self._files.open(self._path(name), "rb", block_size=_PART_BYTES) as stream:
            while chunk := stream.read(chunk_bytes):
                yield chunk

    def fetch_folder(self, name: str, target: Path) -> None:
        """Copy a folder that was written under ``name`` to ``target``, whole or not at all."""
        with self._typed(name):
            root = self._path(name)
            found = self._files.find(root)
            if not found:
                raise FileNotFoundError(errno.ENOENT, "no such blob", root)
            with atomic_directory(target) as partial:
                for path in found:
                    relative = path[path.index(name) + len(name) + 1 :]
                    opened = self._files.open(path, "rb", block_size=_PART_BYTES)
                    with opened as source, _made(partial / relative) as stream:
                        shutil.copyfileobj(source, stream, _CHUNK_BYTES)

    def local_path(self, name: str) -> Path | None:
        """Return where a blob lies on this machine; None in object storage."""
        return Path(self._path(name)) if self._is_local else None

    def remove(self, name: str) -> None:
        """Remove a blob, file or folder, and what was written of it; one that is gone already is as good.

        Raises:
            StoreUnavailable: the place cannot be reached, or does not let it go.
        """
        path = self._path(name)
        with self._typed():
            if self._is_local:
                # a writer that was killed leaves what it had written under another name
                for written in (path, *map(str, partial_paths(path))):
                    self._remove_local(written)
                return
            end_uploads(self._files, path)
            # one by one: s3fs keeps silent about files that storage refuses to remove in bulk
            for found in self._files.find(path):
                with suppress(FileNotFoundError):
                    self._files.rm_file(found)

    def _remove_local(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm(path, recursive=True)

    def names(self) -> Iterator[str]:
        """Yield the names of all that is there, or partly there: for the search for what no row knows."""
        with self._typed():
            for first in self._listed(self._root):
                paths = self._listed(first)
                for path in sorted(set(map(finished_path, paths) if self._is_local else paths)):
                    yield f"{first.rsplit('/', 1)[1]}/{path.rsplit('/', 1)[1]}"

    def _listed(self, folder: str) -> list[str]:
        try:
            return sorted(str(path).rstrip("/") for path in self._files.ls(folder, detail=False))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def check(self) -> None:
        """Write and remove a few bytes.

        Raises:
            StorageFull: there is no room.
            StoreUnavailable: the place cannot be reached or written.
        """
        name = "checks/writable"
        self.write(name, [b"cohort"], limit=6)
        if self._is_local:
            # not what another process is writing under this name at this moment
            with self._typed():
                self._remove_local(self._path(name))
        else:
            self.remove(name)

    def _path(self, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"{name!r} is no name of a blob")
        return f"{self._root}/{name}"

    @contextmanager
    def _typed(self, name: str | None = None) -> Iterator[None]:
        try:
            yield
        except _SourceError as error:
            raise error.error from None
        except StoreError:
            raise
        except StorageFullError as error:
            raise StorageFull(f"no space is left in {self.url}; free some. What was stored before is safe") from error
        except FileNotFoundError as error:
            # with its bucket all blobs are away: none was removed
            if name is None or not self._has_bucket():
                raise self._gone(error) from error
            raise StoreError(
                f"the blob {name} is not in {self.url} any more; it was removed outside of the store"
            ) from error
        except OSError as error:
            if error.errno in _FULL:
                raise StorageFull(
                    f"no space is left in {self.url}; free some. What was stored before is safe"
                ) from error
            raise self._gone(error) from error
        except _remote_errors() as error:
            raise self._gone(error) from error

    def _has_bucket(self) -> bool:
        try:
            return self._is_local or bool(self._files.exists(self._root.split("/")[0]))
        except Exception as error:
            if not _is_of_place(error):
                raise
            return False

    def _gone(self, error: BaseException) -> StoreUnavailable:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        return StoreUnavailable(
            f"the blobs in {self.url} cannot be reached now ({said}); what was stored before is safe"
        )


def _is_of_place(error: BaseException) -> bool:
    return isinstance(error, (OSError, *_remote_errors()))


def _remote_errors() -> tuple[type[Exception], ...]:
    """Return the errors of clients of object storage that are no ``OSError``; they are there only if installed."""
    botocore, aiohttp = sys.modules.get("botocore.exceptions"), sys.modules.get("aiohttp")
    of_botocore = () if botocore is None else (botocore.BotoCoreError, botocore.ClientError)
    return of_botocore if aiohttp is None else (*of_botocore, aiohttp.ClientError)


@contextmanager
def _made(path: Path) -> Iterator[IO[bytes]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as stream:
        yield stream


class _SourceError(Exception):
    """What the source of a stream raised, such as that the client is gone: no failure of the blobs."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _of_source(chunks: Iterable[bytes]) -> Iterator[bytes]:
    source = iter(chunks)
    while True:
        try:
            chunk = next(source)
        except StopIteration:
            return
        except Exception as error:
            raise _SourceError(error) from error
        yield chunk


def _pour(chunks: Iterable[bytes], stream: IO[bytes], limit: int) -> Written:
    digest, count = hashlib.sha256(), 0
    for chunk in _of_source(chunks):
        count += len(chunk)
        if count > limit:
            raise TooLargeError(limit)
        digest.update(chunk)
        stream.write(chunk)
    return Written(bytes=count, sha256=digest.hexdigest())


def _pour_folder(paths: list[Path], folder: Path, opened: Any) -> Written:
    digest, total = hashlib.sha256(), 0
    for path in paths:
        relative = path.relative_to(folder).as_posix()
        with opened(relative) as stream:
            written = _pour(_chunks(path), stream, limit=1 << 62)
        total += written.bytes
        digest.update(f"{relative}\0{written.sha256}\n".encode())
    return Written(bytes=total, sha256=digest.hexdigest())


def _chunks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk


def open_blobs(place: str | os.PathLike[str]) -> BlobFolder:
    """Open a folder, or a URL that fsspec knows; nothing is read or written.

    Raises:
        InputError: the URL's kind is unknown, or its library is not installed.
    """
    import fsspec

    try:
        # listings that it remembers would hide what other processes have written
        filesystem, root = fsspec.core.url_to_fs(str(place), use_listings_cache=False, **s3_options(str(place)))
    except (ImportError, ValueError) as error:
        hint = "Use a folder, or install the library that the message names; for S3 pip install 'cohort-lora[s3]'."
        allowed = "a folder, or a URL that fsspec knows, such as s3://BUCKET/PREFIX"
        problem = Problem(where="blobs", found=f"{str(place)!r} ({error})", allowed=allowed, hint=hint)
        raise InputError(problem) from error
    bound_patience(filesystem)
    return BlobFolder(filesystem, root, url=str(place))
