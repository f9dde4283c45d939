"""Data that a client trains on, and some steps on them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.service.tinker.tinker_calls import TinkerCalls

__all__ = ["TOKENS", "data", "trained"]

TOKENS = [5, 9, 13, 7, 21, 4, 17]


def data(seed: int = 0, count: int = 2) -> list[tuple[list[int], dict[str, Any]]]:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(3, 60, size=9).tolist() for _ in range(count)]
    return [(row[:-1], {"target_tokens": row[1:], "weights": [1.0] * 8}) for row in rows]


def trained(client: TinkerCalls, model_id: str, *, first: int = 1, steps: int = 3, seed: int = 0) -> list[float]:
    """Return the losses of some steps."""
    losses = []
    for step in range(steps):
        metrics, _ = client.train(model_id, first + 2 * step, data(seed))
        losses.append(metrics["loss:sum"])
        assert math.isfinite(client.step(model_id, first + 2 * step + 1)["metrics"]["unclipped_grad_l2:mean"])
    return losses
