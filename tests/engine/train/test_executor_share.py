"""Two tasks in one executor: each sees its own trials, by its own numbers, and trains on its own rows."""

from __future__ import annotations

from typing import Any

from cohort.core.clock import ManualClock
from cohort.engine.train.executor_share import ExecutorShare
from tests.engine.train.fakes import FakeExecutor, spec_of


class Remembering(FakeExecutor):
    """Keeps the rows that trials were loaded with."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.rows: dict[int, object] = {}

    def load(self, spec: Any, state: Any = None, *, rows: object = None, rank: int | None = None) -> int:
        self.rows[spec.trial_id] = rows
        return super().load(spec, state, rows=rows, rank=rank)

    def evaluate(self, keys: tuple[int, ...], *, rows: object, row_ids: object, objective: object) -> dict[int, str]:
        return {key: f"loss of {key}" for key in keys}


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
    assert share.unload(2).step == 1
    assert share.resident == ()
