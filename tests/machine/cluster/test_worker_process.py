"""The program of a worker: its end of the socket, its parent's life, the function it calls."""

from __future__ import annotations

import socket
import sys
import types

import pytest

from cohort.machine.cluster import worker_process
from cohort.machine.cluster.line_channel import LineChannel


def test_the_function_gets_the_channel_of_the_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    parents: list[int] = []

    def serve(channel: LineChannel) -> None:
        message = channel.receive()
        assert message is not None
        channel.send({"doubled": 2 * message["number"]})
        # in a process of its own, the end of the process does it
        channel.close()

    program = types.ModuleType("a_worker")
    program.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_worker", program)
    monkeypatch.setattr(worker_process, "die_with_parent", parents.append)
    monkeypatch.setattr(sys, "argv", ["worker_process", str(theirs.detach()), "77", "a_worker:serve"])
    dispatcher = LineChannel(ours)
    dispatcher.send({"number": 21})
    worker_process.main()
    assert dispatcher.receive() == {"doubled": 42}
    assert parents == [77]
    dispatcher.close()
