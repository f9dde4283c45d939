"""What every request to a service passes: its key and scopes, its rate, the size of its body; then it is logged."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cohort.core.units import format_bytes
from cohort.service.access.error_answers import as_refusal
from cohort.service.access.rate_limits import RateLimits
from cohort.service.access.refusals import ServiceError
from cohort.store.enums import KeyScope
from cohort.store.tenants.keys import Caller

__all__ = ["CallerCache", "Gate", "GateLimits", "caller_of"]

_access = logging.getLogger("cohort.access")

# the first prefix that fits says which scopes open a path; one of them is enough
_SCOPES: tuple[tuple[str, frozenset[KeyScope]], ...] = (
    ("/v1/files", frozenset({KeyScope.FINE_TUNING, KeyScope.TASKS})),
    ("/v1/fine_tuning", frozenset({KeyScope.FINE_TUNING})),
    ("/v1/cohort", frozenset({KeyScope.TASKS})),
    ("/v1/models", frozenset({KeyScope.INFERENCE, KeyScope.FINE_TUNING, KeyScope.TASKS})),
    ("/v1", frozenset({KeyScope.INFERENCE})),
    ("/api/v1", frozenset({KeyScope.TINKER})),
    ("/metrics", frozenset({KeyScope.METRICS, KeyScope.ADMIN})),
)
_UPLOADS = (("POST", "/v1/files"),)
# a form's fields and boundaries
_MOST_FORM_BYTES = 1 << 20
_MOST_CACHED = 10_000


@dataclass(frozen=True, kw_only=True)
class GateLimits:
    """What one client may send.

    Attributes:
        max_body_bytes: Of a request that is no upload.
        max_upload_bytes: Of an upload.
        requests_per_minute_of_address: Those without a valid key included.
        key_cache_seconds: A revoked key opens nothing after so long.
    """

    max_body_bytes: int = 8 << 20
    max_upload_bytes: int = 200 << 20
    requests_per_minute_of_address: int = 6000
    key_cache_seconds: float = 2.0


def caller_of(scope: Scope) -> Caller:
    """Return who sent a request that passed the gate."""
    found = scope["state"]["caller"]
    assert isinstance(found, Caller), "the gate lets no request to a route without one"
    return found


class CallerCache:
    """Keys that were looked up a moment ago."""

    def __init__(self, find: Callable[[str], Caller | None], *, seconds: float) -> None:
        self._find, self._seconds = find, seconds
        self._known: OrderedDict[str, tuple[float, Caller | None]] = OrderedDict()

    def forget(self, text: str) -> None:
        """Look it up again the next time."""
        self._known.pop(text, None)

    async def find(self, text: str) -> Caller | None:
        """Return whose key a text is; None if it opens nothing."""
        known = self._known.get(text)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        found = await asyncio.to_thread(self._find, text)
        self._known[text] = (time.monotonic() + self._seconds, found)
        self._known.move_to_end(text)
        while len(self._known) > _MOST_CACHED:
            self._known.popitem(last=False)
        return found


class Gate:
    """ASGI middleware. ``state.caller`` of a request is who sent it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        callers: CallerCache,
        limits: GateLimits,
        count_answer: Callable[[str, int], None],
    ) -> None:
        self._app, self._callers, self._limits, self._count_answer = app, callers, limits, count_answer
        self._rates = RateLimits(time.monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, begun, status = f"req_{uuid.uuid4().hex}", time.perf_counter(), 500
        scope.setdefault("state", {})

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            received = await self._admitted(scope, receive)
            if received is not None:
                await self._app(scope, received, counted)
        except Exception as error:
            # routes answer their own errors; what comes here was raised before one was reached
            await _refuse(counted, as_refusal(error))
        finally:
            self._told(scope, request_id, status, time.perf_counter() - begun)

    async def _admitted(self, scope: Scope, receive: Receive) -> Receive | None:
        """Return where the body of a request that may pass comes from; None if its client has left."""
        headers = {name.lower(): value for name, value in scope["headers"]}
        address = (scope.get("client") or ("",))[0]
        self._count(("address", address), per_minute=self._limits.requests_per_minute_of_address)
        needed = next((scopes for prefix, scopes in _SCOPES if _is_below(scope["path"], prefix)), None)
        if needed is not None:
            caller = await self._caller(scope, headers, needed)
            scope["state"]["caller"] = caller
            scope["state"]["key_id"] = caller.key.id
            if caller.project.max_requests_per_minute is not None:
                self._count(("project", caller.project.id), per_minute=caller.project.max_requests_per_minute)
        if (scope["method"], scope["path"].rstrip("/")) in _UPLOADS:
            _declared(headers, most=self._limits.max_upload_bytes + _MOST_FORM_BYTES)
            return receive
        return await _read_whole(receive, headers, most=self._limits.max_body_bytes)

    def _count(self, who: tuple[str, str], *, per_minute: int) -> None:
        if wait := self._rates.take(who, per_minute=per_minute):
            text = f"Too many requests: at most {per_minute} a minute. Send fewer, or try again later."
            raise ServiceError(text, status=429, code="rate_limit_exceeded", retry_seconds=wait)

    async def _caller(self, scope: Scope, headers: Mapping[bytes, bytes], needed: frozenset[KeyScope]) -> Caller:
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() != b"bearer":
            # the Tinker client's header
            given = headers.get(b"x-api-key", b"")
        text = given.strip().decode("latin-1")
        caller = await self._callers.find(text) if text else None
        if caller is None:
            header = "X-API-Key: KEY" if scope["path"].startswith("/api/") else "Authorization: Bearer KEY"
            raise ServiceError(
                f"The API key is missing, wrong, expired or revoked: send {header}.", status=401, code="invalid_api_key"
            )
        if not needed & caller.key.scopes:
            words = " or ".join(sorted(needed))
            raise ServiceError(f"This key lacks the scope {words}.", status=403, code="missing_scope")
        return caller

    def _told(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        # paths without a route share one label: what clients make up must not fill a metric
        route = getattr(scope.get("route"), "path", "other")
        self._count_answer(route, status)
        caller = scope["state"].get("caller")
        _access.info(
            "request",
            extra={
                "fields": {
                    "request_id": request_id,
                    "method": scope["method"],
                    "route": route,
                    "status": status,
                    "seconds": round(seconds, 4),
                    "project": None if caller is None else caller.project.id,
                    "key": None if caller is None else caller.key.id,
                    "address": (scope.get("client") or ("",))[0],
                }
            },
        )


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")


def _declared(headers: Mapping[bytes, bytes], *, most: int) -> None:
    declared = headers.get(b"content-length", b"0")
    if not declared.isdigit() or len(declared) > 18 or int(declared) > most:
        raise ServiceError(f"The body is too large: at most {format_bytes(most)}.", status=413, code="body_too_large")


async def _read_whole(receive: Receive, headers: Mapping[bytes, bytes], *, most: int) -> Receive | None:
    _declared(headers, most=most)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > most:
            raise ServiceError(
                f"The body is too large: at most {format_bytes(most)}.", status=413, code="body_too_large"
            )
        if not message.get("more_body", False):
            break
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": bytes(body), "more_body": False}

    return replayed


async def _refuse(send: Send, refusal: ServiceError) -> None:
    body = json.dumps(refusal.body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
