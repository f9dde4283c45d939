"""A server that is killed goes on where it was: clients that send again end with the bits of an undisturbed run."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cohort.service.tinker.journal.records import Record, framed
from tests.service.server_template import ServerTemplate
from tests.service.tinker.killed_server import KilledServer
from tests.service.tinker.patient_clients import Acknowledged, outcomes

NUM_CLIENTS = 8


@pytest.fixture
def server(model: Path, tmp_path: Path, server_template: ServerTemplate) -> Iterator[KilledServer]:
    options = ("--max-trained-models", "3")
    made = KilledServer(model, tmp_path / "killed", options=options, template=server_template)
    yield made
    made.close()


def kill_and_compare(server: KilledServer, folder: Path, *, kills: int, steps: int, seed: int = 0) -> None:
    server.start()
    undisturbed = Acknowledged()
    expected = outcomes(server.url, folder, clients=NUM_CLIENTS, steps=steps, acknowledged=undisturbed)
    assert len(set(expected)) == NUM_CLIENTS
    acknowledged, chance = Acknowledged(), random.Random(seed)
    moments = sorted(chance.sample(range(NUM_CLIENTS, int(0.9 * undisturbed.count)), kills))

    def kill() -> None:
        for moment in moments:
            acknowledged.wait_for(moment)
            assert server.end() == -signal.SIGKILL
            server.start()

    killing = threading.Thread(target=kill)
    killing.start()
    found = outcomes(server.url, folder, clients=NUM_CLIENTS, steps=steps, acknowledged=acknowledged)
    killing.join()
    assert found == expected
    assert server.num_ended == kills
    journal = folder / ".journal"
    assert sum(path.stat().st_size for path in journal.glob("*.journal")) < 200_000


def refusal(server: KilledServer) -> str:
    """Return what a server says that does not start."""
    server.start(waits=False)
    assert server.wait() == 2
    return server.output


def test_clients_of_a_server_that_is_killed_end_with_the_same_bits(server: KilledServer, tmp_path: Path) -> None:
    """Killed once; ``make soak`` kills it twenty times, from each of three seeds."""
    folder = tmp_path / "killed"
    kill_and_compare(server, folder, kills=1, steps=4)
    server.end()
    # the last record is torn by the kill, another one is damaged by the disk
    segments = {path: path.read_bytes() for path in sorted((folder / ".journal").glob("*.journal"))}
    last, whole = list(segments.items())[-1]
    last.write_bytes(whole[:40] + b"?" + whole[41:] + framed(Record(kind="end", about={"session": "gone"})))
    assert f"{last}\n    found    a damaged record at byte 0" in refusal(server)
    for path in segments:
        path.write_bytes(b"")
    assert "snapshots of models and no whole segment of the journal" in refusal(server)
    for path, content in segments.items():
        path.write_bytes(content)
    last.write_bytes(whole + whole[:30])
    server.start()
    # those of all clients, which have ended no session
    assert f"models in training that go on where they were: {2 * NUM_CLIENTS}" in server.output
    assert "sample" not in server.output


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_soak_clients_of_a_server_that_is_killed_twenty_times_end_with_the_same_bits(
    server: KilledServer, tmp_path: Path, seed: int
) -> None:
    kill_and_compare(server, tmp_path / "killed", kills=20, steps=25, seed=seed)
