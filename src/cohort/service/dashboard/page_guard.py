"""What every request of a browser passes before its route: host, size, key, token; and what every answer carries."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cohort.core.errors import CohortError
from cohort.core.input_values.whole_numbers import read_whole
from cohort.service.dashboard.plain_json import dumped
from cohort.service.dashboard.sessions import Session, Sessions
from cohort.service.dashboard.settings import is_loopback

__all__ = ["COOKIE", "CSRF_HEADER", "PageGuard", "is_still_open", "session_of"]

_log = logging.getLogger(__name__)

COOKIE = "cohort_session"
CSRF_HEADER = "x-csrf-token"
MOST_BODY_BYTES = 1 << 20
_SESSION_PATH = "/api/session"

_SECURITY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def session_of(scope: Scope) -> Session | None:
    """Return the session that :class:`PageGuard` found for a request."""
    found = scope.get("cohort_session")
    return found if isinstance(found, Session) else None


async def is_still_open(scope: Scope) -> bool:
    """Return whether who sent a request that passed :class:`PageGuard` may still see its answer.

    An answer that goes on for hours asks this again and again: its key may end meanwhile.
    """
    ask: Callable[[], Awaitable[bool]] = scope["cohort_is_still_open"]
    return await ask()


class PageGuard:
    """ASGI middleware. Paths under ``/api`` need a session once a key is set; what changes anything, its token."""

    def __init__(self, app: ASGIApp, *, sessions: Sessions, host: str) -> None:
        self._app, self._sessions = app, sessions
        self._is_loopback = is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), _path_of(scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in _SECURITY.items():
                    answer[name] = value
                if path.startswith("/api"):
                    answer["cache-control"] = "no-store"
            await send(message)

        async def still_open() -> bool:
            try:
                return not self._sessions.needs_key or await self._viewer(headers) is not None
            except CohortError:
                # nothing ends while nothing can be asked; a new request is refused meanwhile
                return True

        scope["cohort_is_still_open"] = still_open
        try:
            refusal = await self._refusal(scope, path, headers)
        except CohortError as error:
            _log.warning("a key or a session cannot be looked up: %s", error)
            refusal = 503, "the server cannot look up keys now: its database is away; try again in a few seconds"
        if refusal is not None:
            await _refuse(guarded, *refusal)
            return
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MOST_BODY_BYTES:
                # the rest is not read: a route sees a body that ends, and a length that it does not have
                return {"type": "http.disconnect"}
            return message

        await self._app(scope, limited, guarded)

    async def _viewer(self, headers: Headers) -> Session | None:
        """Return who sends a request: a program with a key of its own, or the browser of a cookie."""
        if (key := _bearer(headers)) and (program := await self._sessions.of_program(key)) is not None:
            return program
        # a proxy may have sent a key of its own
        number = _cookie(headers.getlist("cookie"))
        return await self._sessions.find(number) if number else None

    async def _refusal(self, scope: Scope, path: str, headers: Headers) -> tuple[int, str] | None:
        method = scope["method"]
        # a page of another site may point its own name at this machine: only names of this machine are answered
        if self._is_loopback and not is_loopback(_host_name(headers.get("host", ""))):
            return 421, "this server answers to 127.0.0.1 and localhost only"
        length = read_whole(headers.get("content-length", "0"))
        if length is None or length > MOST_BODY_BYTES:
            return 413, f"the body is larger than {MOST_BODY_BYTES} bytes"
        if method not in ("GET", "HEAD", "POST"):
            return 405, f"{method} is not answered here"
        if method == "POST":
            origin = headers.get("origin")
            if origin is not None and urlsplit(origin).netloc != headers.get("host"):
                return 403, "the request comes from a page of another site"
            if not headers.get("content-type", "").startswith("application/json"):
                return 415, "send JSON"
        if not path.startswith("/api"):
            return None
        session = scope["cohort_session"] = await self._viewer(headers)
        if (caller := getattr(session, "caller", None)) is not None:
            # whose request it was, for the log of a server with tenants
            scope.setdefault("state", {})["caller"] = caller
        if path == _SESSION_PATH:
            return None
        if self._sessions.needs_key and session is None:
            return 401, "sign in with a key of this server"
        # no browser sends a key by itself, so no other site's page can make it
        if method == "POST" and not (session is not None and session.is_program):
            sent = headers.get(CSRF_HEADER, "")
            if session is None or not hmac.compare_digest(sent.encode(), session.csrf.encode()):
                return 403, "the page is too old or not ours: load it again"
        return None


def _path_of(scope: Scope) -> str:
    """Return the path within the application, which may be mounted below another one."""
    return str(scope["path"]).removeprefix(str(scope.get("root_path", ""))) or "/"


def _bearer(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _host_name(host: str) -> str:
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]


def _cookie(values: Sequence[str]) -> str:
    for value in values:
        try:
            found = SimpleCookie(value).get(COOKIE)
        except CookieError:
            continue
        if found is not None:
            return found.value
    return ""


async def _refuse(send: Send, status: int, message: str) -> None:
    body = dumped({"error": message})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
