"""Keeps Triton out of a test and of the processes that it starts."""

from __future__ import annotations

import os
from contextvars import ContextVar
from pathlib import Path

import pytest

from cohort.kernels import backend

__all__ = ["use_no_triton"]

_FOLDER = Path(__file__).parent / "without_triton"


def use_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute with the references of all kernels, so that nothing is compiled."""
    # the default, since threads begin with no value: a backward pass runs in one
    default = ContextVar("forced_backend", default=backend.Backend.REFERENCE)
    monkeypatch.setattr(backend, "_forced_backend", default)
    path = filter(None, [str(_FOLDER), os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
