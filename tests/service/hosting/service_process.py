"""``cohort service`` as a process that a test may kill."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai

from tests.service.server_template import ForkedServer, ServerTemplate

__all__ = ["ServiceProcess", "forked_service", "service_process"]

_KEY = re.compile(r"shown once: (\S+)")
_ADDRESS = re.compile(r"serving on (\S+)/v1")


@dataclass
class ServiceProcess:
    """A service that listens.

    Attributes:
        key: Its first key, where this start has made it.
    """

    process: subprocess.Popen[str] | ForkedServer
    url: str
    key: str

    def client(self, key: str) -> openai.OpenAI:
        # a request that meets a kill is sent again to the next process
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def children(self) -> list[int]:
        """Return the dispatcher, then its workers, as far as they are there."""
        dispatchers = _children(self.process.pid)
        return [*dispatchers, *(worker for each in dispatchers for worker in _children(each))]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _children(parent: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            found += [int(number) for number in task.read_text().split()]
        except OSError:
            # the thread is gone
            continue
    return found


@contextmanager
def forked_service(
    folder: Path,
    template: ServerTemplate,
    *,
    name: str = "node",
    cpu_workers: int | None = None,
    database: str | None = None,
) -> Iterator[ServiceProcess]:
    """Start a service as :func:`service_process` does, but as a fork of ``template``: it has nothing to import."""
    file = _write_file(folder, name=name, cpu_workers=cpu_workers, database=database)
    output = folder.parent / f"{name}.output"
    # of an earlier start
    output.unlink(missing_ok=True)
    process = ForkedServer(template, ["service", str(file)], output=output)
    try:
        deadline = time.monotonic() + 60
        while (address := _ADDRESS.search(told := output.read_text() if output.exists() else "")) is None:
            assert time.monotonic() < deadline, f"the service did not start: {told}"
            time.sleep(0.05)
        key = _KEY.search(told)
        yield ServiceProcess(process, address[1], "" if key is None else key[1])
    finally:
        process.kill()
        process.wait()


def _write_file(folder: Path, *, name: str, cpu_workers: int | None, database: str | None, more: str = "") -> Path:
    file = folder.parent / f"{name}.yaml"
    workers = "" if cpu_workers is None else f"workers: {{cpu: {cpu_workers}}}\n"
    text = f"folder: {folder.name}\nname: {name}\nport: 0\nlimits: {{lease_seconds: 3.0}}\n{workers}{more}"
    if database is not None:
        text += f"database: {database}\nblobs: {folder.name}/blobs\n"
    file.write_text(text)
    return file


@contextmanager
def service_process(
    folder: Path,
    *,
    name: str = "node",
    cpu_workers: int | None = None,
    database: str | None = None,
    more: str = "",
    options: tuple[str, ...] = (),
) -> Iterator[ServiceProcess]:
    """Start a service on a folder; at the end it is killed, unless it has ended.

    Args:
        database: A URL in place of SQLite; files are in the folder either way.
        more: Further lines of its file.
        options: Of its command line.
    """
    file = _write_file(folder, name=name, cpu_workers=cpu_workers, database=database, more=more)
    command = [sys.executable, "-m", "cohort", "service", str(file), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with (folder.parent / "service.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    assert process.stdout is not None
    told = ""
    try:
        for line in process.stdout:
            told += line
            if _ADDRESS.search(line):
                break
        address, key = _ADDRESS.search(told), _KEY.search(told)
        assert address is not None, f"the service did not start: {told} (see {folder.parent / 'service.log'})"
        yield ServiceProcess(process, address[1], "" if key is None else key[1])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
