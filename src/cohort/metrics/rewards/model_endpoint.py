"""An OpenAI-compatible endpoint of one process, whose answers come from trials that train: for programs that converse.

A program asks for a completion as model ``conversation-N``. What it asks waits as an event of conversation N until an
answer is given. The standard library alone: this runs in interpreters without Cohort's packages.
"""

from __future__ import annotations

import json
import queue
import re
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Asked", "Ended", "LiveConversation", "ModelEndpoint"]

_TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", flags=re.DOTALL)
_NAME = "conversation-"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A program wants an answer.

    Attributes:
        messages: All of the conversation so far, as chat messages with text contents.
        tools: The tools it may call, as OpenAI's API has them.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A program is done: with a reward, or with what went wrong."""

    reward: float | None = None
    error: str = ""


@dataclass(eq=False)
class LiveConversation:
    """A program that converses.

    Attributes:
        events: What it asked and how it ended, in order.
        answers: Texts to answer it with; None ends it with an error.
        heard: Messages that it has sent so far.
    """

    events: queue.SimpleQueue[Asked | Ended] = field(default_factory=queue.SimpleQueue)
    answers: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    heard: int = 0


class ModelEndpoint:
    """Serves ``/v1/chat/completions`` on this machine.

    Attributes:
        base_url: What clients of OpenAI's API are given.
    """

    def __init__(self) -> None:
        self._live: dict[str, LiveConversation] = {}
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
                status, kind, content = endpoint.answer(body)
                # a program that was given up has closed the connection
                with suppress(OSError):
                    self.send_response(status)
                    self.send_header("Content-Type", kind)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Nothing: there is no terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def open(self, name: str) -> tuple[str, LiveConversation]:
        """Return the model that a new conversation asks, and the conversation."""
        model, live = f"{_NAME}{name}", LiveConversation()
        self._live[model] = live
        return model, live

    def forget(self, name: str) -> None:
        """Answer a conversation no more."""
        live = self._live.pop(f"{_NAME}{name}", None)
        if live is not None:
            live.answers.put(None)

    def close(self) -> None:
        """Serve no more, and give up what waits."""
        for model in [*self._live]:
            self.forget(model.removeprefix(_NAME))
        self._server.shutdown()
        self._server.server_close()

    def answer(self, body: Mapping[str, Any]) -> tuple[int, str, bytes]:
        """Return status, type and content of the response to a request, once there is an answer."""
        live = self._live.get(str(body.get("model", "")).rpartition("/")[2])
        if live is None:
            return _error(404, f"no conversation is named {body.get('model')!r}")
        messages = tuple(_plain(message) for message in body.get("messages") or ())
        live.events.put(Asked(messages=messages, tools=tuple(body.get("tools") or ())))
        text = live.answers.get()
        if text is None:
            return _error(400, "the conversation was given up")
        completion = _completion(str(body.get("model")), text)
        if not body.get("stream"):
            return 200, "application/json", json.dumps(completion).encode()
        return 200, "text/event-stream", _streamed(completion)


def _error(status: int, message: str) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps({"error": {"message": message, "type": "invalid_request"}}).encode()


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its content as text; parts that are no text are left out."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    found = {"role": str(message.get("role")), "content": content or ""}
    return {**found, **{key: message[key] for key in ("tool_calls", "tool_call_id", "name") if message.get(key)}}


def _completion(model: str, text: str) -> dict[str, Any]:
    calls: list[dict[str, Any]] = []
    for found in _TOOL_CALL.finditer(text):
        with suppress(ValueError, KeyError, TypeError):
            call = json.loads(found[1])
            arguments = json.dumps(call.get("arguments", {}))
            function = {"name": str(call["name"]), "arguments": arguments}
            calls.append({"id": f"call_{len(calls)}_{uuid.uuid4().hex[:8]}", "type": "function", "function": function})
    message: dict[str, Any] = {"role": "assistant", "content": _TOOL_CALL.sub("", text).strip() if calls else text}
    if calls:
        message["tool_calls"] = calls
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _streamed(completion: Mapping[str, Any]) -> bytes:
    (choice,) = completion["choices"]
    calls = [{**call, "index": place} for place, call in enumerate(choice["message"].get("tool_calls", ()))]
    delta = {**choice["message"], **({"tool_calls": calls} if calls else {})}
    chunks = [
        {"index": 0, "delta": delta, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]},
    ]
    shared = {**completion, "object": "chat.completion.chunk"}
    lines = [f"data: {json.dumps({**shared, 'choices': [chunk]})}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()
