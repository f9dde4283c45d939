"""The file that says what has been compiled, and the GPU that workers compile for without having one."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.kernels.compile_ahead import _NamedGpu, cache_marker

pytest.importorskip("triton")


def test_it_lies_in_tritons_cache_and_depends_on_the_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    first = cache_marker("model", (16, 64))
    assert first is not None
    assert first.parent == tmp_path
    assert cache_marker("model", (16, 64)) == first
    assert cache_marker("model", (16, 32)) != first
    monkeypatch.delenv("TRITON_CACHE_DIR")
    at_home = cache_marker("model", (16, 64))
    assert at_home is not None
    assert at_home.parent == Path.home() / ".triton" / "cache"


def test_workers_name_the_gpu_they_compile_for() -> None:
    target = _NamedGpu((9, 0)).get_current_target()
    assert (target.backend, target.arch, target.warp_size) == ("cuda", 90, 32)
