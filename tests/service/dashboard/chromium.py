"""A real Chromium before a real server of the pages; tests that use it are skipped where either package or browser is
absent.
"""

from __future__ import annotations

import select
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette

from cohort.service.dashboard.app import build_dashboard
from cohort.service.dashboard.settings import DashboardSettings
from cohort.service.listening import listen

__all__ = [
    "BROWSER",
    "Cuttable",
    "axe_script",
    "browser_here",
    "serious_findings",
    "served",
    "served_app",
    "watched_page",
]

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def browser_here() -> Iterator[Any]:
    """Start Chromium, or skip the tests that need it."""
    playwright = pytest.importorskip("playwright.sync_api", reason="`make test-browser` installs playwright")
    if BROWSER is None:
        pytest.skip("no Chromium on this machine: on Debian, `apt-get install chromium`")
    with playwright.sync_playwright() as started:
        # a container's root has no sandbox; the pages are our own
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def served(settings: DashboardSettings) -> Iterator[str]:
    """Serve the pages from a thread until the block ends; the address ends with a slash."""
    with served_app(build_dashboard(settings)) as address:
        yield address


@contextmanager
def served_app(app: Starlette) -> Iterator[str]:
    """Serve an application from a thread until the block ends; the address ends with a slash."""
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(20)
        listener.close()


@contextmanager
def watched_page(browser: Any, address: str, **context: Any) -> Iterator[Any]:
    """Open an empty page; at the end no script has failed, no policy was broken and no other host was asked."""
    opened = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
    page = opened.new_page()
    page.set_default_timeout(15_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))

    def said(message: Any) -> None:
        if "Content Security" in message.text:
            wrong.append(message.text)

    def asked(request: Any) -> None:
        if not request.url.startswith((address, "blob:", "data:")):
            wrong.append(request.url)

    def opened_by_a_script(dialog: Any) -> None:
        wrong.append("a script of the data ran")
        dialog.dismiss()

    page.on("console", said)
    page.on("dialog", opened_by_a_script)
    opened.on("request", asked)
    try:
        yield page
        assert not wrong, wrong
    finally:
        opened.close()


def axe_script() -> str:
    """Return the source of axe, or skip the tests that need it."""
    found = find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        pytest.skip("`make test-browser` installs axe")
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


def serious_findings(page: Any, axe: str) -> list[tuple[str, list[str]]]:
    """Return what axe finds serious or critical on a page, each with some of the places."""
    page.evaluate(axe)
    found = page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        (entry["id"], [node["html"][:120] for node in entry["nodes"]][:3])
        for entry in found["violations"]
        if entry["impact"] in ("serious", "critical")
    ]


class Cuttable:
    """A port that passes bytes on to another one until its connections are cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.is_broken = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/"

    def cut(self) -> None:
        """End every connection and accept none until :meth:`mend`."""
        self.is_broken = True
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def mend(self) -> None:
        self.is_broken = False

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.is_broken:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open += [client, server]
                threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        with suppress(OSError, ValueError), client, server:
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    other[ready].sendall(data)
