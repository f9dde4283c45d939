"""The solver is looked for without being imported."""

from __future__ import annotations

import importlib.util

import pytest

from cohort.scheduling.solver import has_solver


def test_a_solver_that_is_not_installed_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_solver()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert not has_solver()
