"""Ranks that torchrun has started, on one host or several: they connect to rank 0 and serve it.

Rank 0 listens and writes its port and a key into torchrun's store; each other rank connects to it, proves that it has
the key, and says which versions and which GPU it has. From then on a rank of another host is called over its
connection as a rank that rank 0 started itself. A closed connection is how either side learns that the other is gone.

The store and the connections are those of a trusted network, as everything that torch.distributed does.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from cohort.core.errors import InputError, Problem, RankLostError, RunStateError
from cohort.ranks.launch.launch_place import LaunchPlace
from cohort.ranks.rank_link import GO_ON, RankLink, Release
from cohort.ranks.rank_setup import RankSetup
from cohort.ranks.transport import Channel

__all__ = ["Goodbye", "Hello", "LaunchedRank", "LaunchedRanks", "connect_to_first", "gather_ranks"]

# a host that starts slowly, e.g. because its Python lies on a network file system
WAIT_SECONDS = 300.0
_KEY = "cohort/rank 0 of start"
# a host without power sends nothing: the kernel asks it after this many seconds, this often, this many seconds apart
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPCNT": 3, "TCP_KEEPINTVL": 3, "TCP_USER_TIMEOUT": 20_000}
# seconds and microseconds, as the system calls take them
_SHORT, _FOR_EVER = struct.pack("ll", 10, 0), struct.pack("ll", 0, 0)
# what an end of a connection raises where the other one is gone, or is not one of ours
_NO_RANK = (EOFError, OSError, RuntimeError, AuthenticationError, AssertionError)


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What a rank says of itself.

    Attributes:
        host: The name of its machine.
        versions: Of the packages that must be the same everywhere, by name.
        gpu: What its GPU is called; empty on a CPU.
    """

    rank: int
    node: int
    host: str
    process_id: int
    versions: Mapping[str, str] = field(default_factory=dict)
    gpu: str = ""

    @classmethod
    def of(cls, place: LaunchPlace, *, versions: Mapping[str, str], gpu: str) -> Hello:
        return cls(
            rank=place.rank,
            node=place.node,
            host=socket.gethostname(),
            process_id=os.getpid(),
            versions=dict(versions),
            gpu=gpu,
        )


@dataclass(frozen=True, kw_only=True)
class Goodbye:
    """To a rank: the run has ended as it should."""


class LaunchedRank(RankLink):
    """One rank that torchrun started, as :class:`~cohort.ranks.rank_process.RankProcess` is one of rank 0's own."""

    def __init__(self, connection: Connection, hello: Hello, *, is_here: bool) -> None:
        """Take a connected rank; ``is_here``: on the host of this process."""
        super().__init__(hello.rank, Channel(connection, opens_gpu_memory=is_here), opens_gpu_memory=is_here)
        self.hello = hello

    @property
    def process_id(self) -> int:
        return self.hello.process_id

    def close(self) -> None:
        """Let the rank drop its executor; it waits for another setup."""
        with contextlib.suppress(RankLostError):
            self.send(Release())

    def kill(self) -> None:
        """Break the connection, which ends the process after the call it is at."""
        self._channel.close()

    def dismiss(self) -> None:
        """Tell the rank that the run has ended as it should."""
        with contextlib.suppress(RankLostError):
            self.send(Goodbye())
        self._channel.close()

    def _lost(self) -> RankLostError:
        who = f"rank {self.rank} (process {self.process_id} on {self.hello.host})"
        return RankLostError(f"{who} is gone; {GO_ON}")


class LaunchedRanks:
    """All ranks besides rank 0, connected; used by rank 0."""

    def __init__(self, place: LaunchPlace, ranks: Sequence[LaunchedRank]) -> None:
        self.place = place
        self._ranks = {rank.rank: rank for rank in ranks}

    @property
    def num_hosts(self) -> int:
        return len({self.place.node, *(rank.hello.node for rank in self._ranks.values())})

    def begin(self, setup: RankSetup) -> LaunchedRank:
        """Have a rank build its executor, and return it; its first answer says whether it could."""
        rank = self._ranks[setup.rank]
        rank.begin(setup)
        return rank

    def dismiss(self) -> None:
        """Let all ranks end: the run has ended as it should."""
        for rank in self._ranks.values():
            rank.dismiss()

    def close(self) -> None:
        """Break all connections: ranks that were not dismissed end with an error."""
        for rank in self._ranks.values():
            rank.kill()


def gather_ranks(
    place: LaunchPlace, *, versions: Mapping[str, str], gpu: str, store: Any, wait_seconds: float = WAIT_SECONDS
) -> LaunchedRanks:
    """Wait until all other ranks have connected, and return them; for rank 0.

    Args:
        versions, gpu: Of this process, as in :class:`Hello`.
        store: torch.distributed's, which all ranks of the launch see.

    Raises:
        InputError: a rank has other versions, or another kind of GPU; all differences.
        RunStateError: a rank did not come.
    """
    key = secrets.token_bytes(32)
    found: dict[int, tuple[Connection, Hello]] = {}
    with contextlib.ExitStack() as opened, _server() as server:
        server.settimeout(wait_seconds)
        store.set(f"{_KEY} {place.num_restarts}", json.dumps({"port": server.getsockname()[1], "key": key.hex()}))
        while len(found) < place.num_ranks - 1:
            try:
                accepted, _ = server.accept()
            except TimeoutError:
                missing = sorted(set(range(1, place.num_ranks)) - found.keys())
                raise RunStateError(
                    f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} of {place.num_ranks} did not "
                    f"connect within {wait_seconds:.0f} s; see the output of torchrun on every host"
                ) from None
            # one that connects and says nothing must not keep the others out
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SHORT)
            connection = _connection(accepted)
            opened.callback(connection.close)
            try:
                deliver_challenge(connection, key)
                answer_challenge(connection, key)
                hello: Hello = Channel(connection).receive()
            except _NO_RANK:
                # not one of ours, or one that died just now, which torchrun reports
                connection.close()
                continue
            with socket.socket(fileno=os.dup(connection.fileno())) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _FOR_EVER)
            found[hello.rank] = (connection, hello)
        first = Hello.of(place, versions=versions, gpu=gpu)
        if problems := list(_differences(first, [found[rank][1] for rank in sorted(found)])):
            raise InputError(problems)
        opened.pop_all()
    return LaunchedRanks(
        place,
        [
            LaunchedRank(connection, hello, is_here=hello.node == place.node)
            for connection, hello in (found[rank] for rank in sorted(found))
        ],
    )


def connect_to_first(
    place: LaunchPlace, *, versions: Mapping[str, str], gpu: str, store: Any, wait_seconds: float = WAIT_SECONDS
) -> Channel:
    """Return the connection to rank 0; for any other rank.

    Raises:
        RunStateError: rank 0 cannot be reached.
    """
    try:
        key_of_start = f"{_KEY} {place.num_restarts}"
        store.wait([key_of_start], timedelta(seconds=wait_seconds))
        found = json.loads(store.get(key_of_start))
        opened = socket.create_connection((place.first_host, found["port"]), timeout=wait_seconds)
        opened.settimeout(None)
        connection, key = _connection(opened), bytes.fromhex(found["key"])
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
        channel = Channel(connection, opens_gpu_memory=place.node == place.node_of_first)
        channel.send(Hello.of(place, versions=versions, gpu=gpu))
    except _NO_RANK as error:
        raise RunStateError(
            f"rank {place.rank} cannot reach rank 0 on {place.first_host} ({error}); check that the hosts see each "
            "other and that no firewall is between them"
        ) from None
    return channel


def _differences(first: Hello, others: Sequence[Hello]) -> Iterator[Problem]:
    """Yield what is not the same on another host as on that of rank 0, once for each host."""
    told: set[tuple[str, str]] = set()
    for hello in others:
        own = {**hello.versions, "GPU": hello.gpu}
        for name, version in {**first.versions, "GPU": first.gpu}.items():
            if own.get(name, "") == version or (hello.host, name) in told:
                continue
            told.add((hello.host, name))
            fix = "Use hosts with GPUs of one kind." if name == "GPU" else "Install the same versions on every host."
            yield Problem(
                where=f"torchrun: rank {hello.rank} on {hello.host}",
                found=f"{name} {own.get(name) or 'missing'}",
                allowed=f"{name} {version or 'missing'}, as rank 0 has on {first.host}",
                hint=fix,
            )


def _server() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _connection(opened: socket.socket) -> Connection:
    opened.setblocking(True)
    # calls are small and waited for
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            opened.setsockopt(socket.IPPROTO_TCP, option, value)
    return Connection(opened.detach())
