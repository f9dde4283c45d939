"""The unmodified ``tinker`` package notices nothing but a delay when its server is killed and started again."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tests.clients.client_runs import MODEL, needs_clients, run_against
from tests.service.tinker.killed_server import KilledServer

KILLS = 3


@needs_clients
def test_loops_on_a_server_that_is_killed_reach_what_they_reach_undisturbed(tmp_path: Path) -> None:
    server = KilledServer(MODEL, tmp_path / "killed")
    try:
        server.start()
        began = time.monotonic()
        undisturbed = run_against(server.url, "tinker_loops.py")
        seconds = time.monotonic() - began
        has_ended = threading.Event()

        def kill() -> None:
            # the client has imported itself by then and is in its loops; each server lives for a second
            has_ended.wait(0.6 * seconds)
            while server.num_ended < KILLS and not has_ended.is_set():
                server.end()
                server.start()
                has_ended.wait(1)

        killing = threading.Thread(target=kill)
        killing.start()
        try:
            found = run_against(server.url, "tinker_loops.py")
        finally:
            has_ended.set()
            killing.join()
        assert server.num_ended > 0
        assert found["supervised"]["losses"] == undisturbed["supervised"]["losses"]
        assert found["supervised"]["next"] == undisturbed["supervised"]["next"]
        assert found["rewards"] == undisturbed["rewards"]
    finally:
        server.close()
