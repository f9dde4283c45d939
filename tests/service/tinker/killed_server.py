"""A server that trains for clients, in a process of its own, to be killed and started again on its folder."""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from pathlib import Path

import httpx

from tests.service.server_template import ServerTemplate
from tests.support.free_ports import free_port

__all__ = ["KilledServer", "with_small_segments"]


class KilledServer:
    """One server on one folder, always at one address.

    Attributes:
        num_ended: How often it was ended.
    """

    def __init__(
        self, model: Path, folder: Path, *, options: tuple[str, ...] = (), template: ServerTemplate | None = None
    ) -> None:
        """Make a server that is a fork of ``template``; None: of a process of its own, which ends with it."""
        self._port = free_port()
        self.url, self._output = f"http://127.0.0.1:{self._port}", folder.with_suffix(".output")
        self._arguments = ["serve", str(model), "--served-model-name", "base", "--tinker", str(folder), "--gpus", "0"]
        self._arguments += ["--port", str(self._port), "--kv-cache-gib", "0.01", *options]
        self._template, self._owns_template = template or ServerTemplate(), template is None
        self._process_id = self.num_ended = 0

    def start(self, *, waits: bool = True) -> None:
        """Start the server, and wait until it answers."""
        self._process_id = self._template.start(
            self._arguments, output=self._output, before=f"{__name__}:with_small_segments"
        )
        deadline = time.monotonic() + 60
        while waits:
            try:
                httpx.get(f"{self.url}/api/v1/healthz", timeout=5).raise_for_status()
                return
            except httpx.HTTPError:
                assert time.monotonic() < deadline, self.output
                time.sleep(0.05)

    def end(self, by: int = signal.SIGKILL) -> int:
        """End the server and return its status, negative for a signal."""
        process_id, self._process_id = self._process_id, 0
        self.num_ended += 1
        os.kill(process_id, by)
        return self._template.wait(process_id)

    def wait(self) -> int:
        """Return the status of a server that ends by itself, within a minute."""
        process_id, self._process_id = self._process_id, 0
        killing = threading.Timer(60, os.kill, (process_id, signal.SIGKILL))
        killing.start()
        status = self._template.wait(process_id)
        killing.cancel()
        return status

    @property
    def output(self) -> str:
        """What the last server has printed."""
        return self._output.read_text()

    def close(self) -> None:
        if self._process_id:
            self.end()
        if self._owns_template:
            self._template.close()


def with_small_segments() -> None:
    """Have journals so small that every run takes snapshots and drops segments."""
    importlib.import_module("cohort.service.tinker.upkeep").CALLS_BETWEEN_SNAPSHOTS = 6  # type: ignore[attr-defined]
    journal = importlib.import_module("cohort.service.tinker.journal.journal")
    journal.Journal.__init__.__kwdefaults__["segment_bytes"] = 6000
