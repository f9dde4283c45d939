"""Runs a service under uvicorn until a signal ends it: jobs save their state, requests finish."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from cohort.core.process.lasting_objects import lasting_objects_uncollected
from cohort.service.ending_server import KEEP_ALIVE_SECONDS, EndingServer
from cohort.service.hosting.opening import OpenService
from cohort.service.hosting.service_app import build_service_app
from cohort.service.listening import stopped_by_signals
from cohort.service.streams.lent_connection import LendingProtocol
from cohort.service.usage_book import UsageBook

__all__ = ["run_service"]


def run_service(opened: OpenService, *, listener: socket.socket, on_ready: Callable[[str], None]) -> bool:
    """Serve until SIGTERM, SIGINT or SIGHUP; return whether everything that ran was saved and answered.

    Args:
        on_ready: Receives the address, once requests are accepted.
    """
    book = UsageBook(opened.store)
    app = build_service_app(opened, book)
    host, port = listener.getsockname()[:2]
    tls = opened.file.tls
    config = uvicorn.Config(
        app,
        http=LendingProtocol,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=int(opened.file.limits.drain_seconds),
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
    )
    server = EndingServer(config, on_end=getattr(app.state, "end_streams", None))

    def stop() -> None:
        server.should_exit = True

    bases = opened.served.bases.values()
    shown = f"[{host}]" if ":" in host else host
    has_saved = True
    with stopped_by_signals(stop), lasting_objects_uncollected():
        try:
            for base in bases:
                base.thread.on_lost = stop
                base.thread.start()
            book.start()
            opened.runner.start()
            on_ready(f"http{'' if tls is None else 's'}://{shown}:{port}")
            server.run(sockets=[listener])
        finally:
            has_saved = opened.runner.close()
            # uvicorn has waited for running requests already
            answered = [base.thread.close(drain_seconds=1.0) for base in bases]
            book.close()
            opened.store.close()
    return has_saved and all(answered)
