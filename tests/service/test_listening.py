"""How a server listens."""

from __future__ import annotations

import socket

from cohort.service.listening import listen


def test_connections_send_small_answers_at_once() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
