"""Generation where memory runs out."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.ranks import local_executor
from cohort.ranks.answers import LEAST_GENERATION_TOKENS, AnswerGenerator, Prompt
from cohort.ranks.local_executor import LocalExecutor
from cohort.training.device_memory import DeviceMemory


def test_answers_become_fewer_at_a_time_and_what_saves_time_goes_before_one_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budgets: list[int] = []
    savings = [False, True]
    asked: list[int] = []

    def relief() -> bool:
        asked.append(budgets[-1])
        return savings.pop()

    def stream(*_: Any, token_budget: int, **__: Any) -> Any:
        budgets.append(token_budget)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(local_executor, "stream", stream)
    executor: Any = object.__new__(LocalExecutor)
    executor.bank, executor.decoder = SimpleNamespace(context=None, num_slots=1), None
    executor.memory, executor.reliefs = DeviceMemory("cpu"), [relief]
    executor._generator = AnswerGenerator(
        token_budget=2 * LEAST_GENERATION_TOKENS, device=torch.device("cpu"), make_room=executor.make_room
    )
    with pytest.raises(torch.OutOfMemoryError):
        executor.generate([Prompt(trial_id=None, tokens=[1])], max_new_tokens=1, stop_ids=frozenset())
    least = LEAST_GENERATION_TOKENS // 2
    assert budgets == [4 * least, 2 * least, least, least]
    assert asked == [least, least]


def test_room_is_made_by_the_first_that_has_something_to_give() -> None:
    asked: list[str] = []

    def relief(name: str, *, has: bool) -> Callable[[], bool]:
        def give() -> bool:
            asked.append(name)
            return has

        return give

    executor: Any = object.__new__(LocalExecutor)
    executor.reliefs = [relief("nothing", has=False), relief("graphs", has=True), relief("states", has=True)]
    assert executor.make_room()
    assert asked == ["nothing", "graphs"]
