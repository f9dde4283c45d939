"""Sizes that no executor can have are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.training.executor_settings import ExecutorSettings

SIZES: dict[str, Any] = {"num_slots": 1, "num_rank_rows": 16, "token_budget": 1, "evaluation_token_budget": 1}


@pytest.mark.parametrize("name", sorted(SIZES))
def test_a_size_is_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        ExecutorSettings(**{**SIZES, name: 0})


def test_no_pass_may_be_recorded() -> None:
    assert ExecutorSettings(**SIZES).graph_tokens == 0
    with pytest.raises(ValueError, match="graph_tokens must not be negative, got -1"):
        ExecutorSettings(**SIZES, graph_tokens=-1)


def test_recorded_passes_take_no_less_than_nothing() -> None:
    assert ExecutorSettings(**SIZES).graph_bytes is None
    assert ExecutorSettings(**SIZES, graph_bytes=0).graph_bytes == 0
    with pytest.raises(ValueError, match="graph_bytes must not be negative, got -1"):
        ExecutorSettings(**SIZES, graph_bytes=-1)
