"""A hub of models on this machine: folders behind the few addresses that the hub's client asks for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

__all__ = ["FakeHub", "fake_hub"]


@dataclass(kw_only=True)
class FakeHub:
    """What is on the hub.

    Attributes:
        models: By ``OWNER/NAME@REVISION`` the folder of that revision; ``main`` is what is given without one.
        gated: Names whose files nobody here may read.
        fetched: Paths of the files that were sent.
    """

    models: Mapping[str, Path]
    gated: frozenset[str] = frozenset()
    fetched: list[str] = field(default_factory=list)


@contextmanager
def fake_hub(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Let the hub's client ask ``hub`` within the block, with an empty cache of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    constants = "huggingface_hub.constants"
    monkeypatch.setattr(f"{constants}.ENDPOINT", address)
    monkeypatch.setattr(
        f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(f"{constants}.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", address)
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    def sha(name: str, revision: str) -> str:
        return hashlib.sha1(f"{name}@{revision}".encode()).hexdigest()

    def found(name: str, revision: str) -> tuple[str, Path] | None:
        """Return the commit and the folder of a revision, by its name or its commit."""
        for key, folder in hub.models.items():
            owner, _, own = key.partition("@")
            if owner == name and revision in (own or "main", sha(name, own or "main")):
                return sha(name, own or "main"), folder
        return None

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def log_message(self, *_arguments: object) -> None:
            pass

        def _answer(self) -> None:
            parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
            if parts[:2] == ["api", "models"]:
                self._about("/".join(parts[2:4]), parts[4:])
            else:
                self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

        def _about(self, name: str, rest: list[str]) -> None:
            if not any(key.split("@")[0] == name for key in hub.models):
                return self._error(404, "RepoNotFound")
            there = found(name, rest[1] if len(rest) > 1 else "main")
            if there is None:
                return self._error(404, "RevisionNotFound")
            commit, folder = there
            files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            if rest[:1] == ["tree"]:
                return self._json(
                    [
                        {
                            "type": "file",
                            "path": str(path.relative_to(folder)),
                            "size": path.stat().st_size,
                            "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
                        }
                        for path in files
                    ]
                )
            siblings = [{"rfilename": str(path.relative_to(folder))} for path in files]
            self._json({"id": name, "modelId": name, "sha": commit, "private": False, "siblings": siblings})

        def _file(self, name: str, revision: str, file: str) -> None:
            if name in hub.gated:
                return self._error(403, "GatedRepo")
            there = found(name, revision)
            if there is None or not (there[1] / file).is_file():
                return self._error(404, "EntryNotFound")
            content = (there[1] / file).read_bytes()
            if self.command == "GET":
                hub.fetched.append(file)
            self._send(200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": there[0]})

        def _json(self, value: Any) -> None:
            self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _error(self, status: int, code: str) -> None:
            self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

        def _send(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

    return Handler
