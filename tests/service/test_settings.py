"""Limits of a server are at least one of each."""

from __future__ import annotations

import pytest

from cohort.service.settings import ServerLimits


@pytest.mark.parametrize("name", ["max_waiting", "max_body_bytes", "max_prompts"])
def test_limits_of_nothing_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        ServerLimits(**{name: 0})
