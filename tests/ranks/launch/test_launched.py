"""Ranks that a launcher has started: how they find rank 0, what it refuses, and what either side learns of a loss."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.core.errors import InputError, RankLostError, RunStateError
from cohort.ranks.calls import Reply
from cohort.ranks.launch import launched, launched_server
from cohort.ranks.launch.launch_place import LaunchPlace
from cohort.ranks.launch.launched import LaunchedRanks, connect_to_first, gather_ranks
from cohort.ranks.launch.launched_server import serve_first
from cohort.ranks.rank_link import Release
from cohort.ranks.rank_setup import RankSetup
from cohort.ranks.transport import Channel

SAME = {"cohort": "1", "torch": "2"}


class Store:
    """torch.distributed's store within one process."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def wait(self, keys: list[str], timeout: Any) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: all(key in self._values for key in keys), timeout.total_seconds()):
                raise RuntimeError("timed out")

    def get(self, key: str) -> bytes:
        return self._values[key].encode()


def place(rank: int, *, num_ranks: int = 3) -> LaunchPlace:
    """Ranks 0 and 1 are on one host, and rank 2 on another."""
    return LaunchPlace(rank=rank, num_ranks=num_ranks, local_rank=rank % 2, node=rank // 2, first_host="127.0.0.1")


def joined(
    store: Store, *, versions: Mapping[int, Mapping[str, str]] | None = None, gpus: Mapping[int, str] | None = None
) -> tuple[LaunchedRanks, dict[int, Channel]]:
    """Rank 0's side, and that of ranks 1 and 2."""
    found: dict[int, Channel] = {}

    def connect(rank: int) -> None:
        own = (versions or {}).get(rank, SAME)
        found[rank] = connect_to_first(place(rank), versions=own, gpu=(gpus or {}).get(rank, ""), store=store)

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in (2, 1)]
    for thread in threads:
        thread.start()
    try:
        return gather_ranks(place(0), versions=SAME, gpu="", store=store, wait_seconds=30), found
    finally:
        for thread in threads:
            thread.join(120)


def setup_of(rank: int) -> Any:
    return SimpleNamespace(rank=rank, rows=())


def test_ranks_connect_in_any_order_and_answer() -> None:
    ranks, others = joined(Store())
    assert ranks.num_hosts == 2
    links = {rank: ranks.begin(setup_of(rank)) for rank in (1, 2)}
    assert [others[rank].receive().rank for rank in (1, 2)] == [1, 2]
    # GPU memory can be opened on one host only
    assert [links[rank].opens_gpu_memory for rank in (1, 2)] == [True, False]
    weights = torch.arange(6.0, dtype=torch.bfloat16).view(2, 3)
    others[2].send(Reply(value=weights))
    assert torch.equal(links[2].answer().value, weights)
    links[1].close()
    assert isinstance(others[1].receive(), Release)
    ranks.close()
    with pytest.raises(EOFError):
        others[1].receive()


def test_a_host_with_other_versions_or_gpus_is_refused_in_plain_words() -> None:
    store = Store()
    with pytest.raises(InputError) as caught:
        joined(store, versions={2: {"cohort": "1", "torch": "3"}, 1: {"torch": "2"}}, gpus={2: "NVIDIA L4"})
    found = {(str(p.where).partition(" on ")[0], p.found, p.allowed.partition(",")[0]) for p in caught.value.problems}
    assert found == {
        ("torchrun: rank 1", "cohort missing", "cohort 1"),
        ("torchrun: rank 2", "torch 3", "torch 2"),
        ("torchrun: rank 2", "GPU NVIDIA L4", "GPU missing"),
    }
    assert all("as rank 0 has on" in problem.allowed for problem in caught.value.problems)


def test_ranks_that_do_not_come_are_named() -> None:
    with pytest.raises(RunStateError, match=r"ranks 1, 2 of 3 did not connect within 0 s"):
        gather_ranks(place(0), versions=SAME, gpu="", store=Store(), wait_seconds=0.1)


def test_rank_0_that_does_not_come_is_named() -> None:
    with pytest.raises(RunStateError, match=r"rank 2 cannot reach rank 0 on 127\.0\.0\.1"):
        connect_to_first(place(2), versions=SAME, gpu="", store=Store(), wait_seconds=0.1)


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n" * 20, struct.pack("!i", 4) + b"what"])
def test_a_stranger_without_the_key_is_let_go(words: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    store, refused = Store(), []
    plain_set = store.set

    def strangers_first(key: str, value: str) -> None:
        port = int(value.partition('"port": ')[2].partition(",")[0])
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(words)
        refused.append(port)
        plain_set(key, value)

    monkeypatch.setattr(store, "set", strangers_first)
    ranks, others = joined(store)
    assert refused
    assert sorted(others) == [1, 2]
    ranks.close()


def test_a_rank_that_is_gone_is_named_with_its_host_and_what_to_do() -> None:
    ranks, others = joined(Store())
    link = ranks.begin(setup_of(2))
    others[2].close()
    with pytest.raises(RankLostError, match=rf"rank 2 \(process \d+ on {socket.gethostname()}\) is gone; everything"):
        link.answer()
    # neither letting go nor dismissing needs a rank that is there
    link.close()
    ranks.dismiss()


def test_a_rank_serves_one_executor_after_another_until_it_is_dismissed(monkeypatch: pytest.MonkeyPatch) -> None:
    setups: list[Any] = []

    def serve_setup(channel: Channel, setup: RankSetup) -> None:
        setups.append(setup)
        channel.send(Reply())
        assert isinstance(channel.receive(), Release)

    monkeypatch.setattr(launched_server, "serve_setup", serve_setup)
    monkeypatch.setattr(
        launched_server, "replace", lambda setup, gpu: SimpleNamespace(rank=setup.rank, gpu=gpu, is_in_group=False)
    )
    ranks, others = joined(Store())
    ended: dict[int, bool] = {}
    threads = [
        threading.Thread(target=lambda rank=rank: ended.update({rank: serve_first(others[rank], place(rank))}))
        for rank in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for directory in ("/", "/", "/no/such/model"):
        link = ranks.begin(SimpleNamespace(rank=1, model_directory=directory, rows=()))  # type: ignore[arg-type]
        reply = link.answer()
        if directory == "/":
            link.close()
    assert [setup.gpu for setup in setups] == [1, 1]
    assert "finds no base model at /no/such/model; it must lie at the same path on every host" in str(reply.error)
    # one is dismissed, and the other's connection breaks
    ranks._ranks.pop(2).kill()
    ranks.dismiss()
    for thread in threads:
        thread.join(120)
    assert ended == {1: True, 2: False}


def test_each_start_has_a_meeting_place_of_its_own() -> None:
    """After a restart the store may still hold the address of the rank 0 before."""
    store = Store()
    store.set(f"{launched._KEY} 0", "where the first rank 0 was")
    again = replace(place(0, num_ranks=1), num_restarts=1)
    ranks = gather_ranks(again, versions=SAME, gpu="", store=store)
    assert ranks.num_hosts == 1
    assert store.get(f"{launched._KEY} 0") == b"where the first rank 0 was"
