"""Multipart uploads as they stream in: never more in memory than a piece, never more on disk than is allowed."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from cohort.core.durable_files import storage_full_named
from cohort.service.access.refusals import ServiceError

__all__ = ["Upload", "receive_upload"]

_MOST_FIELD_BYTES = 64 << 10
_MOST_PARTS = 16
_MOST_HEADER_BYTES = 8 << 10
# a thread takes longer to reach than this many bytes to write
_WRITTEN_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Upload:
    """A form with one file.

    Attributes:
        fields: Its other fields.
        filename: As the client calls the file.
        path: Where its bytes are until the block ends.
    """

    fields: Mapping[str, str]
    filename: str
    path: Path
    num_bytes: int


class _Form:
    """Takes the parser's calls apart into fields and one file."""

    def __init__(self, file: BinaryIO, *, most_bytes: int) -> None:
        self._file, self._most_bytes = file, most_bytes
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.num_bytes = self.pending_bytes = 0
        self._num_parts = self._num_field_bytes = self._num_header_bytes = 0
        self._header = b""
        self._value = b""
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._is_file = False
        self._text = bytearray()
        self._pieces: list[bytes] = []
        self.is_whole = False

    def on_part_begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > _MOST_PARTS:
            raise ServiceError(f"The form has more than {_MOST_PARTS} parts.", code="invalid_form")
        self._headers, self._text = {}, bytearray()

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]
        self._count_header(end - start)

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._count_header(end - start)

    def _count_header(self, count: int) -> None:
        self._num_header_bytes += count
        if self._num_header_bytes > _MOST_HEADER_BYTES:
            raise ServiceError("The headers of the form's parts are too long.", code="invalid_form")

    def on_header_end(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header = self._value = b""

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode("utf-8", errors="replace")
        self._is_file = self._name == "file" and b"filename" in options
        if not self._is_file:
            return
        if self.filename is not None:
            raise ServiceError("The form has two files.", param="file", code="invalid_form")
        self.filename = options[b"filename"].decode("utf-8", errors="replace")

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.num_bytes += end - start
            if self.num_bytes > self._most_bytes:
                raise too_large(self._most_bytes)
            self._pieces.append(data[start:end])
            self.pending_bytes += end - start
            return
        self._num_field_bytes += end - start
        if self._num_field_bytes > _MOST_FIELD_BYTES:
            raise ServiceError(
                f"The field {self._name[:60]!r} is too long.", param=self._name[:60], code="invalid_form"
            )
        self._text += data[start:end]

    def on_part_end(self) -> None:
        if not self._is_file:
            self.fields[self._name] = self._text.decode("utf-8", errors="replace")

    def on_end(self) -> None:
        self.is_whole = True

    def write(self) -> None:
        pieces, self._pieces, self.pending_bytes = self._pieces, [], 0
        self._file.writelines(pieces)


def too_large(most_bytes: int) -> ServiceError:
    return ServiceError(
        f"The file is too large: at most {most_bytes / 2**20:.4g} MiB are allowed. Split it into several files.",
        status=413,
        param="file",
        code="file_too_large",
    )


@asynccontextmanager
async def receive_upload(request: Request, *, folder: Path, most_bytes: int) -> AsyncIterator[Upload]:
    """Receive a form with one field ``file``; its bytes are gone when the block ends.

    Raises:
        ServiceError: it is no such form, is cut off, or has more than ``most_bytes``.
        StorageFullError: there is no room for it.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise ServiceError(
            "Send the file as multipart/form-data with the fields file and purpose.", code="invalid_form"
        )
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix="upload-", dir=folder)
    path = Path(name)
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            form = _Form(file, most_bytes=most_bytes)
            await _receive(request, form, boundary, path)
        if form.filename is None:
            # curl sends the name itself as a field where @ is missing
            found = "file is a text" if "file" in form.fields else "there is no field file"
            text = f"The form has no file: {found}. With curl: -F purpose=fine-tune -F file=@rows.jsonl"
            raise ServiceError(text, param="file", code="missing_file")
        yield Upload(fields=form.fields, filename=form.filename, path=path, num_bytes=form.num_bytes)
    finally:
        path.unlink(missing_ok=True)


async def _receive(request: Request, form: _Form, boundary: bytes, path: Path) -> None:
    def write() -> None:
        with storage_full_named(path):
            form.write()

    try:
        # the parser looks methods up by these names
        names = (
            "part_begin",
            "header_field",
            "header_value",
            "header_end",
            "headers_finished",
            "part_data",
            "part_end",
        )
        callbacks = {f"on_{name}": getattr(form, f"on_{name}") for name in (*names, "end")}
        parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]
        async for piece in request.stream():
            if piece:
                parser.write(piece)
            if form.pending_bytes >= _WRITTEN_AT_ONCE:
                await asyncio.to_thread(write)
        parser.finalize()
        await asyncio.to_thread(write)
    except FormParserError as error:
        raise ServiceError(f"The form cannot be read: {error}", code="invalid_form") from None
    if not form.is_whole:
        raise ServiceError("The form ends before its last boundary.", code="invalid_form")
