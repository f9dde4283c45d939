"""The folder of all caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.cache_directory import default_cache_directory


def test_the_environment_names_it_or_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COHORT_CACHE_DIR", raising=False)
    assert default_cache_directory() == Path.home() / ".cache" / "cohort"
    monkeypatch.setenv("COHORT_CACHE_DIR", "/elsewhere")
    assert default_cache_directory() == Path("/elsewhere")
