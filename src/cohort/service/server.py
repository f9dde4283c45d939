"""Runs the application under uvicorn until a signal ends it: SIGTERM lets running requests finish."""

from __future__ import annotations

import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from cohort.core.errors import InputError, Problem
from cohort.core.place import Place
from cohort.service.app import build_app
from cohort.service.metrics import ServerMetrics
from cohort.service.opening import Opened
from cohort.service.settings import ServerSettings

__all__ = ["listen", "run_server"]

_log = logging.getLogger(__name__)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes a free one.

    Raises:
        InputError: the address is not this machine's, or the port is taken or not allowed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
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


def run_server(
    opened: Opened, settings: ServerSettings, *, listener: socket.socket, on_ready: Callable[[str], None]
) -> bool:
    """Serve until SIGTERM, SIGINT or SIGHUP; return whether all requests that ran then have finished.

    Args:
        on_ready: Receives the address, once requests are accepted.
    """
    tinker = opened.tinker
    app = build_app(
        opened.model,
        opened.thread,
        settings=settings,
        metrics=ServerMetrics(opened.model.names[0]),
        tinker=None if tinker is None else tinker.routes.router(),
    )
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=int(settings.limits.drain_seconds),
        server_header=False,
    )
    server = uvicorn.Server(config)

    def stop() -> None:
        server.should_exit = True

    opened.thread.on_lost = stop
    # a rank may have ended while the model was still being opened
    if opened.thread.lost is not None:
        stop()
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    with _stopped_by_signals(stop):
        try:
            opened.thread.start()
            if tinker is not None:
                tinker.trainer.start()
            on_ready(f"http://{shown}:{port}")
            server.run(sockets=[listener])
        finally:
            if tinker is not None:
                tinker.trainer.close()
            # uvicorn has waited for them already
            has_finished = opened.thread.close(drain_seconds=1.0)
            # the group of a lost rank would hang at shutdown: the process ends instead
            if opened.divided is not None and opened.thread.lost is None:
                opened.divided.close()
    return has_finished


@contextlib.contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
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
