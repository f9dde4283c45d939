"""A script of the clients' environment against a server of this checkout."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cohort.service.settings import ServedSettings
from tests.conftest import REPOSITORY
from tests.service.running_server import running

__all__ = ["MODEL", "needs_clients", "run_against", "run_script"]

# a model that was trained: one of random weights hardly learns
MODEL = REPOSITORY / "examples" / "quickstart" / "base_model"
PYTHON = os.environ.get("COHORT_CLIENTS_PYTHON")
needs_clients = pytest.mark.skipif(PYTHON is None, reason="the clients' environment: run make test-clients")


def run_script(name: str, *arguments: str, folder: Path, served_as: str) -> dict[str, Any]:
    """Return what ``name``, given the address of a server and ``arguments``, prints behind the word FOUND."""
    served = ServedSettings(model=str(MODEL), names=(served_as,), gpus=0, tinker=folder / "tinker")
    with running(served) as server:
        return run_against(server.url, name, *arguments)


def run_against(url: str, name: str, *arguments: str) -> dict[str, Any]:
    """Return what ``name``, given ``url`` and ``arguments``, prints behind the word FOUND."""
    assert PYTHON is not None, "skipped without it"
    done = subprocess.run(
        [PYTHON, str(Path(__file__).with_name(name)), url, *arguments],
        env={**os.environ, "TINKER_API_KEY": "tml-local", "TINKER_TELEMETRY": "0", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    result: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    return result
