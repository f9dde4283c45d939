"""The socket that a server listens on, taken before what takes long, and the signals that end it."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
from collections.abc import Callable, Iterator

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place

__all__ = ["listen", "stopped_by_signals"]


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes a free one.

    Raises:
        InputError: the address is not this machine's, or the port is taken or not allowed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        taken = getattr(error, "errno", None) == errno.EADDRINUSE
        raise InputError(
            Problem(
                where=Place(option="command line --port" if taken else "command line --host"),
                found=f"{host}:{port}, where no server can listen ({getattr(error, 'strerror', None) or error})",
                allowed="an address of this machine and a free port",
                hint="Choose another --port, or stop what listens there." if taken else "Use --host 127.0.0.1.",
            )
        ) from None
    # Connections inherit it. Without it an answer's body waits up to 40 ms for the client to acknowledge its head.
    # asyncio switches it on only for sockets that were made with the protocol's number, which create_server omits.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Inside the block, a signal to end calls ``stop``, also before uvicorn listens to signals and after.

    uvicorn raises again what stopped it; here that changes nothing, so that the process ends in its own way. uvicorn
    knows no SIGHUP; a process that ignores it, as under ``nohup``, keeps ignoring it.
    """
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
