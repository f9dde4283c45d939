"""JSON between pages and their server: bodies that are read, answers, and errors as answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from cohort.core.errors import CohortError
from cohort.service.dashboard.plain_json import dumped

__all__ = ["NotAllowedError", "answering", "http_error", "json_answer", "json_body"]


class NotAllowedError(CohortError):
    """The server shows and changes nothing, or the viewer may not."""


def answering(
    statuses: Mapping[type[Exception], int], *, words: Callable[[CohortError], str] = str
) -> Callable[[Callable[[Request], Awaitable[Any]]], Callable[[Request], Awaitable[Response]]]:
    """Return what makes a route of a handler: it answers what the handler returns as JSON, and its errors with
    their text.

    Args:
        statuses: The status of each kind of error; 503 for the others.
        words: The text of an error that a viewer reads.
    """
    known: dict[type[Exception], int] = {NotAllowedError: 403, **statuses}

    def of(handler: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
        async def route(request: Request) -> Response:
            try:
                found = await handler(request)
                return found if isinstance(found, Response) else json_answer(found)
            except CohortError as error:
                status = next((status for kind, status in known.items() if isinstance(error, kind)), 503)
                return json_answer({"error": words(error)}, status=status)

        return route

    return of


def json_answer(body: Any, *, status: int = 200) -> Response:
    return Response(dumped(body), status_code=status, media_type="application/json")


async def http_error(_: Request, error: Exception) -> Response:
    """Answer an error that Starlette raises."""
    assert isinstance(error, HTTPException)
    return json_answer({"error": str(error.detail)}, status=error.status_code)


async def json_body(request: Request) -> dict[str, Any]:
    """Return the JSON object that a page sends.

    Raises:
        HTTPException: it is none, or its sender has left.
    """
    try:
        body = json.loads(await request.body())
    except ClientDisconnect:
        # the guard ends a body that is too long and has not said so
        raise HTTPException(413, "the body is too large, or its sender has left") from None
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise HTTPException(400, "the body is no JSON object")
    return body
