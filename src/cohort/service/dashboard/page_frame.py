"""What all pages need before they show anything: the files that a browser loads, and who the viewer is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route

from cohort import report
from cohort.report.styles import PALETTE
from cohort.service.dashboard.json_answers import json_answer, json_body
from cohort.service.dashboard.page_guard import COOKIE, session_of
from cohort.service.dashboard.sessions import Session, Sessions
from cohort.version import __version__

__all__ = ["PageFrame"]

_STATIC = (Path(__file__).parent / "static").resolve()
_REPORT = Path(report.__file__).parent.resolve()
_MEDIA = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


class PageFrame:
    """The routes that every set of pages has.

    Args:
        pages: Those that the navigation shows, by their names in ``app.js``; the first is shown first.
        key_hint: Says which key opens the pages, where they need one.
        facts: What a viewer who is signed in gets as well; ``pages`` among them takes the place of ``pages``.
    """

    def __init__(
        self,
        sessions: Sessions,
        *,
        pages: tuple[str, ...],
        key_hint: str,
        facts: Callable[[Session], Mapping[str, Any]],
    ) -> None:
        self._sessions = sessions
        self._known = {"pages": list(pages), "key_hint": key_hint, "version": __version__}
        self._facts = facts

    def routes(self) -> list[Route]:
        return [
            Route("/", self._index),
            Route("/static/{path:path}", self._static),
            Route("/api/session", self._session, methods=["GET", "POST"]),
        ]

    async def _index(self, request: Request) -> Response:
        # relative addresses of the page need the slash at the end of where it is mounted
        if not request.url.path.endswith("/"):
            return RedirectResponse(f"{request.url.path}/")
        return _file("index.html")

    async def _static(self, request: Request) -> Response:
        return _file(str(request.path_params["path"]))

    async def _session(self, request: Request) -> Response:
        """Say who the viewer is; with a key, sign in; with ``leave``, sign out."""
        sessions = self._sessions
        found = session_of(request.scope)
        if request.method == "POST":
            body = await json_body(request)
            if found is not None:
                await sessions.end(found)
            found = None
            if body.get("leave") is not True and sessions.needs_key:
                key = str(body.get("key", "")).strip()
                if refusal := await sessions.refusal(key):
                    # a person waits this long for a slip, a program that guesses for each guess
                    await asyncio.sleep(0.5)
                    return json_answer({"error": refusal}, status=401)
                found = await sessions.begin(key)
        is_new = found is None
        if found is None and not sessions.needs_key:
            found = await sessions.begin()
        answer = json_answer(
            {
                # before a key is given there is nothing to keep, or a stranger could fill the server's memory
                "csrf": "" if found is None else found.csrf,
                "is_open": found is not None,
                "needs_key": sessions.needs_key,
                **self._known,
                **({} if found is None else self._facts(found)),
            }
        )
        path = f"{request.scope.get('root_path', '')}/"
        if found is None:
            answer.delete_cookie(COOKIE, path=path)
        elif not found.is_program and (is_new or request.method == "POST"):
            is_secure = request.url.scheme == "https"
            answer.set_cookie(COOKIE, found.number, httponly=True, samesite="strict", secure=is_secure, path=path)
        return answer


def _file(name: str) -> Response:
    # the palette is the report's: a trial has one colour in both
    folder = _REPORT if name == PALETTE else _STATIC
    # a zero byte is part of no file's name
    path = (folder / name.replace("\0", "_")).resolve()
    media = _MEDIA.get(path.suffix)
    if media is None or not path.is_relative_to(folder) or not path.is_file():
        raise HTTPException(404, "there is no such page")
    # asked again each time, answered from its time stamp: a new version is never mixed with an old one
    return FileResponse(path, media_type=media, headers={"cache-control": "no-cache"})
