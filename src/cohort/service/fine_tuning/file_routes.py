"""OpenAI's files: uploaded as they stream in, listed, read, deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from cohort.service.access.gate import caller_of
from cohort.service.access.refusals import ServiceError
from cohort.service.fine_tuning.bodies import file_body
from cohort.service.fine_tuning.pages import list_body, page_asked
from cohort.service.fine_tuning.uploads import Upload, receive_upload
from cohort.service.jobs.room import Room
from cohort.service.openapi_bodies import form_body, query_parameters
from cohort.store.pages import Order
from cohort.store.store import ProjectStore, Store

__all__ = ["file_routes"]

_PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
_MOST_NAME_LETTERS = 255
_CHUNK_BYTES = 1 << 20
_LEAST_LIFE, _MOST_LIFE = 3600, 2_592_000
_FORM = form_body(
    {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": list(_PURPOSES)},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": _LEAST_LIFE, "maximum": _MOST_LIFE},
    },
    required=["file", "purpose"],
)
_PAGE = query_parameters(
    after={"type": "string"},
    limit={"type": "integer", "minimum": 1, "maximum": 10_000},
    order={"type": "string", "enum": ["asc", "desc"]},
    purpose={"type": "string"},
)


def file_routes(store: Store, *, room: Room, folder: Path, most_bytes: int) -> APIRouter:
    """Return the routes of files.

    Args:
        folder: Where uploads lie until they are whole.
        most_bytes: Of one file.
    """
    routes = APIRouter(prefix="/v1/files", tags=["files"])

    def files_of(request: Request) -> ProjectStore:
        return store.project(caller_of(request.scope).project.id)

    @routes.post("", summary="Upload a file", openapi_extra=_FORM)
    async def upload(request: Request) -> Response:
        own = files_of(request)
        require_room(room)
        async with AsyncExitStack() as stack:
            form = await stack.enter_async_context(receive_upload(request, folder=folder, most_bytes=most_bytes))
            lifetime = _checked(form)
            added = await asyncio.to_thread(
                own.files.add,
                _chunks(form.path),
                filename=form.filename,
                purpose=form.fields["purpose"],
                max_bytes=most_bytes,
                lifetime_seconds=lifetime,
            )
        return JSONResponse(file_body(added))

    @routes.get("", summary="List files", openapi_extra=_PAGE)
    async def listed(request: Request) -> Response:
        asked = page_asked(request.query_params, default=10_000, most=10_000, has_order=True)
        page = await asyncio.to_thread(
            files_of(request).files.list,
            after=asked.after,
            limit=asked.limit,
            order=Order.ASC if asked.is_ascending else Order.DESC,
            purpose=request.query_params.get("purpose"),
        )
        return JSONResponse(list_body([file_body(file) for file in page.items], has_more=page.has_more))

    @routes.get("/{file_id}", summary="Retrieve a file")
    async def retrieved(request: Request, file_id: str) -> Response:
        return JSONResponse(file_body(await asyncio.to_thread(files_of(request).files.get, file_id)))

    @routes.get("/{file_id}/content", summary="Read a file")
    async def content(request: Request, file_id: str) -> Response:
        own = files_of(request).files
        file = await asyncio.to_thread(own.get, file_id)
        chunks = await asyncio.to_thread(lambda: _begun(own.content(file_id)))
        headers = {"Content-Length": str(file.bytes), "X-Content-Type-Options": "nosniff"}
        return StreamingResponse(_streamed(chunks), media_type="application/octet-stream", headers=headers)

    @routes.delete("/{file_id}", summary="Delete a file")
    async def deleted(request: Request, file_id: str) -> Response:
        await asyncio.to_thread(files_of(request).files.delete, file_id)
        return JSONResponse({"id": file_id, "object": "file", "deleted": True})

    return routes


def require_room(room: Room) -> None:
    """Raise :class:`ServiceError` (507) where the disk has no room for what is to be accepted."""
    if not room.look():
        text = "The server's disk is nearly full: nothing new is accepted. What it acknowledged before is safe."
        raise ServiceError(text, status=507, code="storage_full", retry_seconds=60)


def _checked(form: Upload) -> float | None:
    """Return how long a file is to live; None: until it is deleted."""
    purpose = form.fields.get("purpose")
    if purpose not in _PURPOSES:
        found = "missing" if purpose is None else repr(purpose[:60])
        raise ServiceError(f"purpose is {found}; write one of {', '.join(_PURPOSES)}.", param="purpose")
    if not form.num_bytes:
        raise ServiceError("The file is empty.", param="file", code="empty_file")
    if not form.filename or len(form.filename) > _MOST_NAME_LETTERS or not form.filename.isprintable():
        text = f"The file's name must have 1 to {_MOST_NAME_LETTERS} printable letters."
        raise ServiceError(text, param="file", code="invalid_file_name")
    if purpose == "fine-tune" and not form.filename.lower().endswith(".jsonl"):
        text = f"Invalid file format for Fine-Tuning API. Must be .jsonl, and is {form.filename[:60]!r}."
        raise ServiceError(text, param="file", code="invalid_file_format")
    return _lifetime(form)


def _lifetime(form: Upload) -> float | None:
    anchor, seconds = (form.fields.get(f"expires_after[{name}]") for name in ("anchor", "seconds"))
    if anchor is None and seconds is None:
        return None
    is_number = seconds is not None and seconds.isascii() and seconds.isdigit() and len(seconds) < 10
    if anchor != "created_at" or not is_number or not _LEAST_LIFE <= int(seconds or 0) <= _MOST_LIFE:
        text = f"expires_after needs anchor created_at and seconds from {_LEAST_LIFE} to {_MOST_LIFE}."
        raise ServiceError(text, param="expires_after")
    return float(seconds or 0)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk


def _begun(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Read the first chunk: what is wrong with the blobs is an answer as long as nothing was sent."""
    return chain([next(chunks, b"")], chunks)


async def _streamed(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield chunk
