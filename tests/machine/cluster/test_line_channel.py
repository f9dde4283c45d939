"""Messages over a socket: whole lines, whatever the other end does."""

from __future__ import annotations

import socket
import struct
import threading

from cohort.machine.cluster.line_channel import LineChannel
from cohort.machine.cluster.worker_pool import Message


def channels() -> tuple[LineChannel, LineChannel, socket.socket]:
    """Return two ends, the first with a short time limit of sending, and its socket."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 20_000))
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return LineChannel(ours), LineChannel(theirs), ours


def test_a_line_that_did_not_go_out_at_once_is_not_cut() -> None:
    ours, theirs, _ = channels()
    # nobody reads: the second message breaks off in the middle
    messages = [{"number": number, "text": "x" * 200_000} for number in range(3)]
    for message in messages:
        ours.send(message)
    found: list[Message] = []

    def read() -> None:
        while len(found) < 3 and (message := theirs.receive()) is not None:
            found.append(message)

    reader = threading.Thread(target=read)
    reader.start()
    while reader.is_alive():
        ours.flush()
        reader.join(0.01)
    assert found == messages
    ours.send({"number": 3})
    assert theirs.receive() == {"number": 3}
    ours.close()
    theirs.close()


def test_an_end_that_never_reads_costs_no_memory_without_limit() -> None:
    ours, theirs, _ = channels()
    for _ in range(12):
        ours.send({"text": "x" * 1_000_000})
    assert len(ours._unsent) < 6_000_000
    theirs.close()
    ours.send({"text": "to nobody"})
    ours.send({"text": "to nobody"})
    ours.close()
