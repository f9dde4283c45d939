"""Two tasks in one executor: each sees its own trials, by its own numbers, and trains on its own rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cohort.core.clock import ManualClock
from cohort.engine.train import executor_share
from cohort.engine.train.executor_share import ExecutorShare
from cohort.ranks.answers import Prompt
from cohort.ranks.training_executor import Spread, TrialExecutor, spread
from tests.engine.train.fakes import FakeExecutor, spec_of


class Remembering(FakeExecutor):
    """Keeps the rows that trials were loaded with."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.rows: dict[int, object] = {}

    def load(self, spec: Any, state: Any = None, *, rows: object = None, rank: int | None = None) -> int:
        self.rows[spec.trial_id] = rows
        return super().load(spec, state, rows=rows, rank=rank)

    def evaluate(self, trial_ids: Any, *, rows: object, row_ids: object, objective: object) -> dict[int, str]:
        return {key: f"loss of {key}" for key in trial_ids}

    def generate(self, prompts: Any, *, max_new_tokens: int, stop_ids: object) -> list[int | None]:
        return [prompt.trial_id for prompt in prompts]

    def squares(self, trial_ids: Mapping[int, int]) -> dict[int, int]:
        return {key: key + value for key, value in trial_ids.items()}


def shares(executor: Any) -> list[ExecutorShare]:
    rows: list[Any] = ["first rows", "second rows"]
    return [ExecutorShare(executor, rows=rows[place], place=place) for place in range(2)]


def test_tasks_see_their_own_trials_by_their_own_numbers() -> None:
    executor = Remembering()
    first, second = shares(executor)
    assert [first.load(spec_of(3)), second.load(spec_of(3)), second.load(spec_of(0))] == [0, 1, 2]
    assert (first.resident, second.resident) == ((3,), (3, 0))
    assert set(executor.rows.values()) == {"first rows", "second rows"}
    assert executor.rows[second.key(0)] == "second rows"
    assert first.trial_of(second.key(3)) is None
    assert second.trial_of(second.key(3)) == 3
    second.drop(3)
    assert (first.resident, second.resident) == ((3,), (0,))


def test_what_goes_in_and_out_is_translated() -> None:
    executor = Remembering()
    _, share = shares(executor)
    share.load(spec_of(2))
    executor.step(executor.resident)
    assert share.steps_of(2) == 1
    assert share.slot_of(2) == 0
    found: dict[int, Any] = share.evaluate([2], rows=None, row_ids=[0])  # type: ignore[arg-type]
    assert found == {2: f"loss of {share.key(2)}"}
    prompts = [Prompt(trial_id=trial_id, tokens=(1,)) for trial_id in (2, None)]
    answers: list[Any] = share.generate(prompts, max_new_tokens=1, stop_ids=frozenset())
    assert answers == [share.key(2), None]
    assert share.unload(2).step == 1
    assert share.resident == ()


def test_a_new_verb_needs_nothing_written_for_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    @spread(Spread.TRIALS)
    def squares(self: Any, trial_ids: Mapping[int, int]) -> dict[int, int]:
        raise NotImplementedError

    monkeypatch.setattr(TrialExecutor, "squares", squares, raising=False)
    share: Any = shares(Remembering())[1]
    assert share.squares({5: 1, 6: 2}) == {5: share.key(5) + 1, 6: share.key(6) + 2}


def test_weights_are_drawn_ahead_in_the_turn_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()

    @contextmanager
    def turn() -> Iterator[None]:
        said.append("begins")
        yield
        said.append("ends")

    class Local:
        launches_ahead = True
        fresh_weights = SimpleNamespace(draw_ahead=lambda wanted: said.append(f"draws {len(wanted)}"))

    monkeypatch.setattr(executor_share, "LocalExecutor", Local)
    executor, rows = Local(), "rows"
    share = ExecutorShare(cast(Any, executor), rows=cast(Any, rows), turn=turn)
    share.draw_ahead([spec_of(0), spec_of(1)])
    # others record with the base model, which no wait for the device may interrupt
    assert said == ["begins", "draws 2", "ends"]
