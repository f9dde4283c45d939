"""A server that is killed goes on where it was: clients that send again end with the bits of an undisturbed run."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.tinker.killed_server import KilledServer
from tests.service.tinker.patient_clients import Acknowledged, outcomes

NUM_CLIENTS = 8


@pytest.fixture
def server(model: Path, tmp_path: Path) -> Iterator[KilledServer]:
    made = KilledServer(model, tmp_path / "killed", options=("--max-trained-models", "3"))
    yield made
    made.close()


def kill_and_compare(server: KilledServer, folder: Path, *, kills: int, steps: int) -> None:
    server.start()
    undisturbed = Acknowledged()
    expected = outcomes(server.url, folder, clients=NUM_CLIENTS, steps=steps, acknowledged=undisturbed)
    assert len(set(expected)) == NUM_CLIENTS
    acknowledged, chance = Acknowledged(), random.Random(kills)
    moments = sorted(chance.sample(range(NUM_CLIENTS, int(0.9 * undisturbed.count)), kills))

    def kill() -> None:
        for moment in moments:
            acknowledged.wait_for(moment)
            server.end()
            server.start()

    killing = threading.Thread(target=kill)
    killing.start()
    found = outcomes(server.url, folder, clients=NUM_CLIENTS, steps=steps, acknowledged=acknowledged)
    killing.join()
    assert found == expected
    journal = folder / ".journal"
    assert sum(path.stat().st_size for path in journal.glob("*.journal")) < 200_000


def test_clients_of_a_server_that_is_killed_three_times_end_with_the_same_bits(
    server: KilledServer, tmp_path: Path
) -> None:
    kill_and_compare(server, tmp_path / "killed", kills=3, steps=4)


@pytest.mark.slow
def test_soak_clients_of_a_server_that_is_killed_twenty_times_end_with_the_same_bits(
    server: KilledServer, tmp_path: Path
) -> None:
    kill_and_compare(server, tmp_path / "killed", kills=20, steps=25)
