"""Runs the application under uvicorn until a signal ends it: SIGTERM lets running requests finish."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

import uvicorn

from cohort.core.process.lasting_objects import lasting_objects_uncollected
from cohort.service.dashboard.mounted import mounted_dashboard
from cohort.service.ending_server import KEEP_ALIVE_SECONDS, EndingServer
from cohort.service.listening import stopped_by_signals
from cohort.service.metrics import ServerMetrics
from cohort.service.opening import Opened
from cohort.service.serve_app import build_app
from cohort.service.settings import ServerSettings
from cohort.service.streams.lent_connection import LendingProtocol

__all__ = ["run_server"]

_log = logging.getLogger(__name__)


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
    host, port = listener.getsockname()[:2]
    end_streams = None
    if settings.dashboard is not None:
        pages = mounted_dashboard(settings.dashboard, api_keys=settings.api_keys, host=host, port=port)
        app.mount("/dashboard", pages)
        end_streams = pages.state.end_streams
    config = uvicorn.Config(
        app,
        http=LendingProtocol,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=int(settings.limits.drain_seconds),
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    server = EndingServer(config, on_end=end_streams)

    def stop() -> None:
        server.should_exit = True

    opened.thread.on_lost = stop
    # a rank may have ended while the model was still being opened
    if opened.thread.lost is not None:
        stop()
    shown = f"[{host}]" if ":" in host else host
    with stopped_by_signals(stop), lasting_objects_uncollected():
        try:
            opened.thread.start()
            if tinker is not None:
                tinker.trainer.start()
            if opened.sweeps is not None:
                opened.sweeps.start()
            on_ready(f"http://{shown}:{port}")
            server.run(sockets=[listener])
        finally:
            if opened.sweeps is not None:
                opened.sweeps.close()
            if tinker is not None:
                tinker.close()
            # uvicorn has waited for them already
            has_finished = opened.thread.close(drain_seconds=1.0)
            # the group of a lost rank would hang at shutdown: the process ends instead
            if opened.divided is not None and opened.thread.lost is None:
                opened.divided.close()
    return has_finished
