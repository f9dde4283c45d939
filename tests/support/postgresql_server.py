"""A PostgreSQL of the tests: a cluster in a temporary folder, reached by a unix socket, gone when it is closed."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.support.process_states import stop_process, wait_until_gone

__all__ = ["PostgresServer", "postgresql_binaries"]

_WAIT_SECONDS = 30.0
# a socket's path has 107 letters at most, and the folders of pytest are long
_MEMORY = Path("/dev/shm")


def postgresql_binaries() -> Path | None:
    """Return the folder with ``initdb`` and ``postgres``: the newest that Debian installed, or one of the PATH."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: -int(each.parent.name)):
        if (folder / "initdb").exists():
            return folder
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


class PostgresServer:
    """One cluster. PostgreSQL refuses to run as root, so root starts it as another user."""

    def __init__(
        self, binaries: Path, *, settings: tuple[str, ...] = ("fsync=off",), folder: Path | None = None
    ) -> None:
        base = folder or (_MEMORY if os.access(_MEMORY, os.W_OK) else None)
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir=base))
        self._binaries = binaries
        self._user = None
        if os.getuid() == 0:
            names = {entry.pw_name: entry for entry in pwd.getpwall()}
            entry = names.get("postgres") or names["nobody"]
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
            self._user = entry.pw_name
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._num_databases = 0
        initdb = [str(binaries / "initdb"), "-D", self._data, "-U", "cohort", "-A", "trust", "--no-sync", "-E", "UTF8"]
        self._run([*initdb, "--locale=C"])
        self.start()

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, user=self._user, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        """Start the server and wait until it answers; after a kill it recovers first."""
        settings = (
            *self._settings,
            "listen_addresses=",
            f"unix_socket_directories={self.folder}",
            "max_connections=80",
        )
        # what is written to the disk anyway is not of a test's interest
        options = [part for setting in settings for part in ("-c", setting)]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [str(self._binaries / "postgres"), "-D", self._data, *options],
                user=self._user,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        import psycopg

        end = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                psycopg.connect(self._where("postgres")).close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < end, (self.folder / "log").read_text()
                time.sleep(0.02)

    def kill(self) -> None:
        """End all its processes at once, in the middle of whatever they do."""
        assert self._process is not None
        # stopped, it starts no child that the list lacks: one that lives keeps the cluster's memory from its next start
        stop_process(self._process.pid)
        # its children have sessions of their own; without it they notice and end, which takes a moment
        children = _children(self._process.pid)
        for process_id in (*children, self._process.pid):
            _kill(process_id)
        self._process.wait()
        for child in children:
            wait_until_gone(child)

    def _where(self, name: str) -> str:
        return f"host={self.folder} user=cohort dbname={name}"

    def new_database(self, *, template: str = "template1") -> str:
        """Create a database and return its name."""
        import psycopg

        self._num_databases += 1
        name = f"test_{self._num_databases}"
        with psycopg.connect(self._where("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def url(self, name: str) -> str:
        return f"postgresql://cohort@/{name}?host={self.folder}"

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
