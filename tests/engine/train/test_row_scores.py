"""Generation in a run's evaluations, where memory runs out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.engine.train import row_scores
from cohort.engine.train.row_scores import LEAST_GENERATION_TOKENS, RowScores
from cohort.training.device_memory import DeviceMemory


def test_answers_become_fewer_at_a_time_and_what_saves_time_goes_before_one_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budgets: list[int] = []
    savings = [False, True]
    asked: list[int] = []

    def make_room() -> bool:
        asked.append(budgets[-1])
        return savings.pop()

    def generate(*_: Any, token_budget: int, **__: Any) -> list[list[int]]:
        budgets.append(token_budget)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(row_scores, "generate", generate)
    evaluator = object.__new__(RowScores)
    bank, decoder = SimpleNamespace(context=None, num_slots=1), None
    executor: Any = SimpleNamespace(bank=bank, memory=DeviceMemory("cpu"), make_room=make_room)
    preparation: Any = SimpleNamespace(decoder=decoder)
    evaluator._executor, evaluator._preparation = executor, preparation
    evaluator._generation_tokens = 2 * LEAST_GENERATION_TOKENS
    with pytest.raises(torch.OutOfMemoryError):
        evaluator._continue([], frozenset())
    least = LEAST_GENERATION_TOKENS // 2
    assert budgets == [4 * least, 2 * least, least, least]
    assert asked == [least, least]
