"""What every request of a browser passes before its route: host, size, key, token; and what every answer carries."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cohort.core.input_values.whole_numbers import read_whole
from cohort.service.dashboard.plain_json import dumped
from cohort.service.dashboard.sessions import Session, Sessions
from cohort.service.dashboard.settings import is_loopback

__all__ = ["COOKIE", "CSRF_HEADER", "PageGuard", "key_of", "session_of"]

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


def key_of(scope: Scope) -> str:
    """Return the key behind a request that passed :class:`PageGuard`, where the server keeps keys; else nothing."""
    return str(scope.get("cohort_key", ""))


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

        session = self._sessions.find(_cookie(headers.getlist("cookie")))
        if session is not None and not await self._sessions.holds(session):
            self._sessions.end(session)
            session = None
        scope["cohort_session"] = session
        scope["cohort_key"] = "" if session is None else session.key
        refusal = await self._refusal(scope, path, headers, session)
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

    async def _refusal(
        self, scope: Scope, path: str, headers: Headers, session: Session | None
    ) -> tuple[int, str] | None:
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
        if not path.startswith("/api") or path == _SESSION_PATH:
            return None
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and not await self._sessions.refusal(key):
            scope["cohort_key"] = key.strip()
            # a program with a key of its own: no browser sends that by itself, so no other site's page can make it
            return None
        if self._sessions.needs_key and session is None:
            return 401, "sign in with a key of this server"
        if method == "POST":
            sent = headers.get(CSRF_HEADER, "")
            if session is None or not hmac.compare_digest(sent.encode(), session.csrf.encode()):
                return 403, "the page is too old or not ours: load it again"
        return None


def _path_of(scope: Scope) -> str:
    """Return the path within the application, which may be mounted below another one."""
    return str(scope["path"]).removeprefix(str(scope.get("root_path", ""))) or "/"


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
