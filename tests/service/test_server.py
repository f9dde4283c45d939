"""When a server ends."""

from __future__ import annotations

from pathlib import Path

from cohort.service.listening import listen
from cohort.service.opening import open_served
from cohort.service.server import run_server
from cohort.service.settings import ServedSettings, ServerLimits, ServerSettings
from tests.service.running_server import write_served


def test_a_server_that_lost_a_rank_before_it_listens_ends_at_once(tmp_path: Path) -> None:
    opened = open_served(ServedSettings(model=str(write_served(tmp_path)), gpus=0), ServerLimits())
    opened.thread.lose("rank 1 ended; start the server again")
    with listen("127.0.0.1", 0) as listener:
        assert run_server(opened, ServerSettings(), listener=listener, on_ready=lambda _: None)
    assert not opened.thread.is_alive
