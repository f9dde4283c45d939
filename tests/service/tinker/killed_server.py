"""A server in a process of its own, to be killed and started again: forks of one process that has imported everything.

As a program it reads one JSON command a line: ``{"arguments": [...], "output": path}`` starts a server and writes its
process id, ``{"wait": id}`` waits until it has ended.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import REPOSITORY

__all__ = ["KilledServer", "ServerTemplate"]


class ServerTemplate:
    """A process that has imported everything; servers are forks of it."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.service.tinker.killed_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=REPOSITORY,
        )

    def told(self, command: dict[str, Any]) -> Any:
        """Return the answer to a command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


class KilledServer:
    """One server on one folder, always at one address.

    Attributes:
        num_ended: How often it was ended.
    """

    def __init__(
        self, model: Path, folder: Path, *, options: tuple[str, ...] = (), template: ServerTemplate | None = None
    ) -> None:
        """Make a server that is a fork of ``template``; None: of a process of its own, which ends with it."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url, self._output = f"http://127.0.0.1:{self._port}", folder.with_suffix(".output")
        self._arguments = ["serve", str(model), "--served-model-name", "base", "--tinker", str(folder), "--gpus", "0"]
        self._arguments += ["--port", str(self._port), "--kv-cache-gib", "0.01", *options]
        self._template, self._owns_template = template or ServerTemplate(), template is None
        self._process_id = self.num_ended = 0

    def start(self, *, waits: bool = True) -> None:
        """Start the server, and wait until it answers."""
        self._process_id = self._template.told({"arguments": self._arguments, "output": str(self._output)})
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
        return int(self._template.told({"wait": process_id}))

    def wait(self) -> int:
        """Return the status of a server that ends by itself, within a minute."""
        process_id, self._process_id = self._process_id, 0
        killing = threading.Timer(60, os.kill, (process_id, signal.SIGKILL))
        killing.start()
        status = int(self._template.told({"wait": process_id}))
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


def _serve(command: dict[str, Any]) -> None:
    for descriptor in (1, 2):
        os.dup2(os.open(command["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    # so small that every run takes snapshots and drops segments
    importlib.import_module("cohort.service.tinker.upkeep").CALLS_BETWEEN_SNAPSHOTS = 6  # type: ignore[attr-defined]
    journal = importlib.import_module("cohort.service.tinker.journal.journal")
    journal.Journal.__init__.__kwdefaults__["segment_bytes"] = 6000
    importlib.import_module("cohort.cli.main").main(command["arguments"])


def main() -> None:
    """Start servers until the input ends."""
    import torch

    for name in ("cohort.cli.serve", "cohort.service.server", "cohort.service.opening", "transformers"):
        importlib.import_module(name)
    torch.set_num_threads(1)
    for line in sys.stdin:
        command = json.loads(line)
        if "wait" in command:
            _, status = os.waitpid(command["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        process_id = os.fork()
        if process_id == 0:
            try:
                _serve(command)
            except SystemExit as end:
                sys.stderr.flush()
                os._exit(int(end.code or 0))
            os._exit(0)
        print(process_id, flush=True)


if __name__ == "__main__":
    main()
