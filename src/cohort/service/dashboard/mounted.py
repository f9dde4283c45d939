"""The pages below a path of another server: the one that serves models, which their playground asks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starlette.applications import Starlette

from cohort.service.dashboard.app import build_dashboard
from cohort.service.dashboard.model_server import ModelServer
from cohort.service.dashboard.settings import DashboardSettings

__all__ = ["mounted_dashboard"]


def mounted_dashboard(root: Path, *, api_keys: Sequence[str], host: str, port: int) -> Starlette:
    """Return pages over a folder of runs.

    Args:
        api_keys: One of them opens the pages; the first is what the playground sends.
        host, port: Where the server of models listens.
    """
    # an address that means all of this machine's is no address to call
    own = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    models = ModelServer(f"http://{own}:{port}", api_key=api_keys[0] if api_keys else None)
    return build_dashboard(DashboardSettings(root=root, api_keys=tuple(api_keys), host=host, models=models))
