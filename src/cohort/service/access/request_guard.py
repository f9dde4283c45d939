"""What every request passes before its route: the API key, the limit on its body, the count of its answer."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cohort.service.answers import error_body

__all__ = ["RequestGuard", "tenant_of"]


def tenant_of(request: Request) -> str:
    """Return whose share of the base model a request uses: the tenant that a guard found, or that of its key."""
    state = request.state
    return str(getattr(state, "tenant", None) or getattr(state, "key_id", ""))


class RequestGuard:
    """ASGI middleware. Only paths under ``/v1`` and ``/api/v1`` need a key.

    ``state.key_id`` of a request is a part of its key's SHA-256; empty where no key is asked for.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_keys: tuple[str, ...],
        max_body_bytes: int,
        count_answer: Callable[[str, int], None],
    ) -> None:
        self._app, self._max_body_bytes, self._count_answer = app, max_body_bytes, count_answer
        self._keys = tuple(key.encode() for key in api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        headers = {name.lower(): value for name, value in scope["headers"]}

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = scope.get("route")
                # paths without a route share one label
                self._count_answer(getattr(route, "path", "other"), message["status"])
            await send(message)

        key = self._key_of(headers)
        if self._keys and path.startswith(("/v1", "/api/v1")) and key is None:
            header = "Authorization: Bearer KEY" if path.startswith("/v1") else "X-API-Key: KEY"
            await _refuse(counted, 401, f"the API key is missing or wrong: send {header}")
            return
        scope.setdefault("state", {})["key_id"] = "" if key is None else hashlib.sha256(key).hexdigest()[:16]
        limit = self._max_body_bytes
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            await _refuse(
                counted, 413, f"the body has {declared[:30].decode('latin-1')} bytes; at most {limit} are allowed"
            )
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if len(body) > limit:
                await _refuse(counted, 413, f"the body has more than {limit} bytes")
                return
            if not message.get("more_body", False):
                break
        given = False

        async def replayed() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replayed, counted)

    def _key_of(self, headers: Mapping[bytes, bytes]) -> bytes | None:
        """Return the key of a request; None where it has none of ours."""
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            # the Tinker client's header
            key = headers.get(b"x-api-key", b"")
        # all keys are compared, each in constant time
        matches = [own for own in self._keys if hmac.compare_digest(key.strip(), own)]
        return matches[0] if matches else None


async def _refuse(send: Send, status: int, message: str) -> None:
    kind = "authentication_error" if status == 401 else "invalid_request_error"
    body = json.dumps(error_body(message, kind=kind, code=status)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
