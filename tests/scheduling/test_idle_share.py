"""Which windows of a sweep lie in its training."""

from __future__ import annotations

from typing import Any

from benchmarks.sweeps.idle_share import training_windows


def test_training_lies_between_the_first_update_and_the_last() -> None:
    kinds: list[dict[str, float]] = [{}, {"other": 1.0}, {"optimizer": 0.1}, {"products": 1.0}, {"optimizer": 0.2}, {}]
    rows: list[dict[str, Any]] = [{"at_s": place, "kinds": own} for place, own in enumerate(kinds)]
    assert [row["at_s"] for row in training_windows(rows)] == [2, 3, 4]
    assert training_windows(rows[:2]) == []
