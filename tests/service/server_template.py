"""A process that has imported everything, and servers that are forks of it: each starts in a second and may be killed.

As a program it reads one JSON command a line: ``{"arguments": [...], "output": path, "before": "module:function"}``
starts a server, after a call of the function, and writes its process id, ``{"wait": id}`` waits until it has ended.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from tests.support.forking_program import end_program, start_program

__all__ = ["ForkedServer", "ServerTemplate"]


class ServerTemplate:
    """A process that has imported everything; servers are forks of it."""

    def __init__(self) -> None:
        self._process = start_program("tests.service.server_template", PYTHONUNBUFFERED="1")

    def start(self, arguments: list[str], *, output: Path, before: str | None = None) -> int:
        """Start a command line and return its process id.

        Args:
            output: The file that gets what it prints.
            before: ``module:function``, which is called in its process first.
        """
        return int(self._told({"arguments": arguments, "output": str(output), "before": before}))

    def wait(self, process_id: int) -> int:
        """Return the status of a server once it has ended, negative for a signal."""
        return int(self._told({"wait": process_id}))

    def _told(self, command: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        end_program(self._process)


class ForkedServer:
    """A fork of a template, with what tests ask of a ``subprocess.Popen``."""

    def __init__(self, template: ServerTemplate, arguments: list[str], *, output: Path) -> None:
        self._template = template
        self._status: int | None = None
        self.pid = template.start(arguments, output=output)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def wait(self, timeout: float = 60.0) -> int:
        """Return its status once it has ended; it is killed if it takes longer than ``timeout`` seconds."""
        if self._status is None:
            killing = threading.Timer(timeout, self.kill)
            killing.start()
            self._status = self._template.wait(self.pid)
            killing.cancel()
        return self._status

    def _send(self, number: int) -> None:
        if self._status is None:
            os.kill(self.pid, number)


def _serve(command: dict[str, Any]) -> None:
    for descriptor in (1, 2):
        os.dup2(os.open(command["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    if command["before"]:
        module, _, name = command["before"].partition(":")
        getattr(importlib.import_module(module), name)()
    importlib.import_module("cohort.cli.main").main(command["arguments"])


def main() -> None:
    """Start servers until the input ends."""
    import torch

    for name in (
        "cohort.cli.serve",
        "cohort.service.server",
        "cohort.service.opening",
        "cohort.cli.hosted.service",
        "cohort.service.hosting.opening",
        "cohort.service.hosting.server",
        "transformers",
    ):
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
