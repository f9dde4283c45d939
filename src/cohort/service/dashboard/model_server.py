"""The server of models that the playground asks: `cohort serve`, or any other that speaks OpenAI's completions."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from cohort.core.errors import CohortError

__all__ = ["ModelServer", "NoModelServerError"]

_TIMEOUT_SECONDS = 120.0
_MOST_CHARACTERS = 2000


class NoModelServerError(CohortError):
    """There is no server of models, it does not answer, or it refuses."""


class ModelServer:
    """Asks one server, whose address its operator gave; pages cannot name another."""

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        """Remember the server; nothing is asked yet.

        Args:
            url: With or without ``/v1``.
            api_key: What it wants to see; None for none.

        Raises:
            ValueError: ``url`` is no address of HTTP.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address such as http://127.0.0.1:8000")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"

    def models(self) -> list[str]:
        """Return the names of the base model and of its adapters, as the server lists them.

        Raises:
            NoModelServerError: see there.
        """
        connection = self._connection()
        with closing(connection):
            answer = self._answer(connection, "GET", "/v1/models", None)
            try:
                return [str(entry["id"]) for entry in json.loads(answer.read())["data"]]
            except (ValueError, KeyError, TypeError) as error:
                raise NoModelServerError(f"{self.url} lists its models in another form than OpenAI's") from error

    async def stream(self, body: Mapping[str, Any], *, is_chat: bool) -> AsyncIterator[dict[str, Any]]:
        """Yield ``{"text": ...}`` as the answer comes, and ``{"error": ...}`` where it ends early.

        The connection is closed when the iterator is: a viewer that leaves ends the request.
        """
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        connection = self._connection()

        def put(piece: dict[str, Any] | None) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        def read() -> None:
            try:
                path = "/v1/chat/completions" if is_chat else "/v1/completions"
                answer = self._answer(connection, "POST", path, {**body, "stream": True})
                for line in answer:
                    if line.startswith(b"data:") and (content := line[5:].strip()) != b"[DONE]":
                        put(_piece(json.loads(content)))
            except NoModelServerError as error:
                put({"error": str(error)})
            except (OSError, HTTPException, ValueError, AttributeError, LookupError, TypeError):
                # where the viewer has left and the connection was closed under the reader, or a piece has another form
                put({"error": f"{self.url} stopped answering"})
            put(None)

        threading.Thread(target=read, name="cohort-playground", daemon=True).start()
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
        finally:
            connection.close()

    def _connection(self) -> HTTPConnection:
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(str(parts.hostname), parts.port, timeout=_TIMEOUT_SECONDS)

    def _answer(self, connection: HTTPConnection, method: str, path: str, body: Any) -> HTTPResponse:
        prefix = urlsplit(self.url).path
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, f"{prefix}{path}", body=content, headers=self._headers)
            answer = connection.getresponse()
        except (OSError, HTTPException) as error:
            raise NoModelServerError(
                f"{self.url} does not answer ({error}); is `cohort serve` running there?"
            ) from error
        if answer.status != 200:
            raise NoModelServerError(f"{self.url} refuses ({answer.status}): {_reason(answer.read(_MOST_CHARACTERS))}")
        return answer


def _piece(found: dict[str, Any]) -> dict[str, Any]:
    if "error" in found:
        return {"error": str(found["error"].get("message", "it failed"))}
    choices = found.get("choices") or [{}]
    text = choices[0].get("text")
    if text is None:
        text = (choices[0].get("delta") or {}).get("content")
    return {"text": text or ""}


def _reason(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:200]
