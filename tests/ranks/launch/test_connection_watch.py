"""A process is ended after its connection, unless it leaves the watch in time."""

from __future__ import annotations

import socket
import threading

from cohort.ranks.launch.connection_watch import ConnectionWatch


def test_a_process_that_goes_on_waiting_is_ended() -> None:
    ours, theirs = socket.socketpair()
    ended = threading.Event()
    statuses: list[int] = []

    def end(status: int) -> None:
        statuses.append(status)
        ended.set()

    with ours, ConnectionWatch(ours.fileno(), patience_seconds=0.01, end_process=end):
        # what is still to be read does not hide the end
        theirs.sendall(b"a command that nobody takes")
        assert not ended.wait(0.05)
        theirs.close()
        assert ended.wait(120)
    assert statuses == [1]


def test_a_process_that_leaves_in_time_is_not_ended() -> None:
    ours, theirs = socket.socketpair()
    statuses: list[int] = []
    with ours:
        with ConnectionWatch(ours.fileno(), patience_seconds=60, end_process=statuses.append):
            theirs.close()
        assert not statuses
