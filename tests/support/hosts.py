"""Two hosts on this machine: network namespaces, each with an address, a home and a temporary folder of its own.

They see the same files, as hosts with a shared folder do. A host vanishes when its link is cut: nothing closes its
connections, as when a cable is pulled or its power fails.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import REPOSITORY

__all__ = ["Host", "two_hosts", "why_no_hosts"]


@dataclass(kw_only=True)
class Host:
    """One of the two.

    Attributes:
        name: Of its namespace.
        address: At which the other reaches it.
        interface: Of its link.
        folder: Has its home and its temporary folder.
    """

    name: str
    address: str
    interface: str
    folder: Path
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *words: str | Path, log: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Begin ``python WORDS`` on the host."""
        home, temporary = self.folder / "home", self.folder / "tmp"
        for own in (home, temporary):
            own.mkdir(parents=True, exist_ok=True)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}
        # a package may be installed beside the environment
        further = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        with log.open("ab") as stream:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, sys.executable, *map(str, words)],
                env={
                    **inherited,
                    "PYTHONPATH": os.pathsep.join([*map(str, (REPOSITORY / "src", REPOSITORY)), *further]),
                    "OMP_NUM_THREADS": "1",
                    "HOME": str(home),
                    "TMPDIR": str(temporary),
                    "COHORT_CACHE_DIR": str(home / "cache"),
                    "GLOO_SOCKET_IFNAME": self.interface,
                    **environment,
                },
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def vanish(self) -> None:
        """Cut the link; processes on the host go on, and hear nothing."""
        _ip("-n", self.name, "link", "set", self.interface, "down")

    def come_back(self) -> None:
        _ip("-n", self.name, "link", "set", self.interface, "up")

    def processes(self) -> list[int]:
        """The processes on the host."""
        listed = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True)
        return [int(word) for word in listed.stdout.split()]

    def end(self) -> None:
        for process_id in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        for process in self._started:
            process.wait()


def why_no_hosts() -> str:
    """Return why namespaces cannot be used here; empty where they can."""
    if shutil.which("ip") is None:
        return "there is no ip command"
    name = f"cohort-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces are not allowed here: {made.stderr.strip()}"
    _ip("netns", "del", name)
    return ""


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[Host, Host]]:
    """Make two hosts with a link between them; their homes are below ``folder``."""
    number = os.getpid()
    hosts = tuple(
        Host(
            name=f"cohort-{number}-{place}",
            address=f"10.231.{number % 250}.{1 + place}",
            # an interface's name has fifteen characters at most
            interface=f"co{number % 1_000_000}v{place}",
            folder=folder / f"host-{place}",
        )
        for place in range(2)
    )
    with contextlib.ExitStack() as made:
        for host in hosts:
            _ip("netns", "add", host.name)
            made.callback(_ip, "netns", "del", host.name)
            made.callback(host.end)
        first, second = hosts
        _ip("link", "add", first.interface, "type", "veth", "peer", "name", second.interface)
        for host in hosts:
            _ip("link", "set", host.interface, "netns", host.name)
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.interface)
            for link in ("lo", host.interface):
                _ip("-n", host.name, "link", "set", link, "up")
        yield first, second


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
