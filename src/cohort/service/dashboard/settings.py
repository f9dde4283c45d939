"""What a dashboard is started with."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cohort.service.dashboard.gpu_price import GpuPrice
from cohort.service.dashboard.model_server import ModelServer

__all__ = ["DashboardSettings", "is_loopback"]


@dataclass(frozen=True, kw_only=True)
class DashboardSettings:
    """The pages over one folder of runs.

    Attributes:
        root: A folder of runs, a queue's directory, or one run.
        can_control: Whether the pages may change runs; without it every request that would is refused.
        api_keys: One of them opens the pages; none leaves them open, which is for this machine alone.
        host: The address that is listened on.
        models: The server that the playground asks; None for none.
        gpu_hour: What an hour of one GPU costs; None shows tokens and time alone.
        poll_seconds: The shortest time between two looks at a run that someone watches.
    """

    root: Path
    can_control: bool = False
    api_keys: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    models: ModelServer | None = None
    gpu_hour: GpuPrice | None = None
    poll_seconds: float = 1.0


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine only; a name such as 127.example.org is not."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
