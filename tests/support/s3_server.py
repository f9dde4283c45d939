"""A server of S3 on this machine (moto's), behind a link that a test may cut."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.free_ports import free_port

__all__ = ["Link", "S3Server", "needs_s3", "s3_server"]

_PYTHON = os.environ.get("COHORT_CLIENTS_PYTHON")
_CHUNK_BYTES = 1 << 16
_START_SECONDS = 60.0


def needs_s3() -> None:
    """Skip where S3's client or a server for it is absent."""
    pytest.importorskip("s3fs", reason="no s3fs: run make test-clients")
    if _PYTHON is None:
        pytest.skip("no server of S3: run make test-clients")


class Link:
    """Connections from a port of its own to another one of this machine, which can be cut as by a lost network.

    Attributes:
        swallows: Whether what is sent is dropped without an error.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._bytes_left: int | None = None
        self._last_words: bytes | None = None
        self._is_cut = self.swallows = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def cut(self, *, after_bytes: int = 0) -> None:
        """Break all connections, and each new one, once ``after_bytes`` more were sent to the server."""
        with self._lock:
            self._bytes_left = after_bytes
        if not after_bytes:
            self._break()

    def cut_at(self, words: bytes) -> None:
        """Break all connections, and each new one, once something that begins with ``words`` would be sent."""
        with self._lock:
            self._last_words = words

    @property
    def is_cut(self) -> bool:
        return self._is_cut

    def mend(self) -> None:
        with self._lock:
            self._is_cut, self.swallows, self._bytes_left, self._last_words = False, False, None, None

    def close(self) -> None:
        self._break()
        # a thread that accepts is woken by this alone
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _break(self) -> None:
        with self._lock:
            self._is_cut = True
            connections, self._open = self._open, set()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            with self._lock:
                self._open |= {client, server}
            for source, sink, is_counted in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pump, args=(source, sink, is_counted), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_counted: bool) -> None:
        with suppress(OSError):
            while chunk := source.recv(_CHUNK_BYTES):
                if self.swallows:
                    continue
                if is_counted and self._is_last(chunk):
                    self._break()
                    return
                sink.sendall(chunk)
        with self._lock:
            self._open -= {source, sink}
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _is_last(self, chunk: bytes) -> bool:
        with self._lock:
            if self._last_words is not None and chunk.startswith(self._last_words):
                return True
            if self._bytes_left is None:
                return False
            self._bytes_left -= len(chunk)
            return self._bytes_left < 0


class S3Server:
    """A server with buckets.

    Attributes:
        link: What clients reach it by.
    """

    def __init__(self, port: int, link: Link) -> None:
        self._port, self.link = port, link

    @property
    def environment(self) -> dict[str, str]:
        """What a client finds the server by, with keys."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.link.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            # no file of this machine's user, and no waiting for what the tests take away
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "1",
        }

    def make_bucket(self, name: str) -> None:
        self._ask(f"/{name}", method="PUT")

    def refuse_keys(self, *, refuses: bool = True) -> None:
        """Refuse all keys from now on, or none."""
        self._ask("/moto-api/reset-auth", method="POST", data=b"0" if refuses else b"Infinity")

    def uploads(self, bucket: str) -> int:
        """Return how many uploads of parts are open."""
        return self._ask(f"/{bucket}?uploads").count(b"<UploadId>")

    def _ask(self, path: str, *, method: str = "GET", data: bytes | None = None) -> bytes:
        headers = {
            "Content-Type": "text/plain",
            "Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request",
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}", method=method, data=data, headers=headers
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: bytes = answer.read()
        return found


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server until the block ends."""
    assert _PYTHON is not None, "see needs_s3"
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("wb") as log:
        command = [_PYTHON, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": ""})
        try:
            until = time.monotonic() + _START_SECONDS
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=5).close()
                    break
                except OSError:
                    said = (Path(folder) / "log").read_text()[-2000:]
                    assert process.poll() is None, f"moto ended: {said}"
                    assert time.monotonic() < until, f"moto does not answer: {said}"
                    time.sleep(0.1)
            link = Link(port)
            try:
                yield S3Server(port, link)
            finally:
                link.close()
        finally:
            process.kill()
            process.wait()
