"""Triton's cache is where Triton looks for it, and cold until a task has left its marker."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from cohort.machine.compile_ahead.triton_cache import MARKER_SUFFIX, is_cold, triton_cache


def test_the_place_is_triton_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert triton_cache() == tmp_path
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    assert triton_cache() == Path.home() / ".triton" / "cache"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert triton_cache() is None


def test_a_cache_is_cold_until_a_task_has_left_its_marker(tmp_path: Path) -> None:
    assert is_cold(tmp_path / "none")
    (tmp_path / "kernel").mkdir()
    assert is_cold(tmp_path)
    (tmp_path / f"cohort-0{MARKER_SUFFIX}").touch()
    assert not is_cold(tmp_path)
