"""Runs the pages under uvicorn until a signal ends the process."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from cohort.service.dashboard.app import build_dashboard
from cohort.service.dashboard.settings import DashboardSettings
from cohort.service.ending_server import EndingServer
from cohort.service.listening import stopped_by_signals

__all__ = ["run_dashboard"]


def run_dashboard(settings: DashboardSettings, *, listener: socket.socket, on_ready: Callable[[str], None]) -> None:
    """Serve the pages until SIGTERM, SIGINT or SIGHUP.

    Args:
        on_ready: Receives the address, once requests are accepted.
    """
    app = build_dashboard(settings)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    host, port = listener.getsockname()[:2]
    on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
    server = EndingServer(config, on_end=app.state.end_streams)

    def stop() -> None:
        server.should_exit = True

    with stopped_by_signals(stop):
        server.run(sockets=[listener])
