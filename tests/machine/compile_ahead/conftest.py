"""A machine with a GPU and an empty cache of kernels, where launches are only noted."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.kernels.backend import Backend, BackendChoice
from cohort.machine.compile_ahead import task_kernels as kernels


@pytest.fixture
def on_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let this machine have a GPU and an empty cache, and note which decoder launches are collected from."""
    choice = BackendChoice(backend=Backend.TRITON, reason="a test")
    monkeypatch.setattr(kernels, "describe_backend", lambda _: choice)
    monkeypatch.setattr(kernels, "cache_marker", lambda *_: tmp_path / "cohort-0.compiled")
    monkeypatch.setattr(kernels, "release_cached", lambda _: None)
    monkeypatch.setattr(
        kernels, "stand_in_decoder", lambda *_, region, **__: "stand-in" if region is None else f"{region} of it"
    )
    monkeypatch.setattr(
        kernels, "collect_launches", lambda decoder, *, compiler, **_: compiler.calls.append(f"collect {decoder}")
    )
    return tmp_path
