"""A process counts the cores that it may use."""

from __future__ import annotations

import os

import pytest

from cohort.core.process.cores import num_cores


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= num_cores() <= (os.cpu_count() or 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert num_cores() == 1
    # a system that does not say
    monkeypatch.delattr(os, "sched_getaffinity")
    assert num_cores() == (os.cpu_count() or 1)
