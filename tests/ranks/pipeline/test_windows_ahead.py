"""Windows planned ahead: used where they were guessed right and are there in time, and counted."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.adapters.spec import AdapterSpec
from cohort.models.config import DecoderConfig
from cohort.ranks.pipeline.windows_ahead import WindowsAhead, windows_ahead
from cohort.ranks.rank_group import PipelineGroup, TensorGroup
from cohort.scheduling.pipelines.microbatch.packing import PackingLimits
from cohort.scheduling.pipelines.window_packing import WindowQuestion, WindowSchedule, solved_schedule
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows

ROWS = random_rows(40, seed=4, longest=60)
GROUP = PipelineGroup(cuts=(0, 4, 8))


class FakeSolver:
    """Solves at once, or never; may die."""

    def __init__(self, *, is_slow: bool = False, is_dead: bool = False) -> None:
        self.is_busy, self._is_slow, self._is_dead, self._asked = False, is_slow, is_dead, list[WindowQuestion]()

    def ask(self, question: WindowQuestion) -> None:
        if self._is_dead:
            raise BrokenPipeError
        self.is_busy = True
        self._asked.append(question)

    def answer(self, patience_seconds: float = 0.0) -> tuple[WindowQuestion, WindowSchedule] | None:
        del patience_seconds
        if not self.is_busy or self._is_slow:
            return None
        self.is_busy = False
        return self._asked[-1], solved_schedule(self._asked[-1], limits=PackingLimits(work_limit=0.02))

    def close(self) -> None:
        self.is_busy = False


def ahead(*, least_gain: float = 0.0, **faults: bool) -> WindowsAhead:
    start: Any = lambda: FakeSolver(**faults)  # noqa: E731
    found = WindowsAhead(GROUP, train_rows=ROWS, device_type="cpu", flat_tokens=32, least_gain=least_gain, start=start)
    for slot, (trial_id, batch_size) in enumerate(((4, 3), (2, 5), (9, 8))):
        spec = TrialSpec(
            trial_id=trial_id,
            seed=trial_id,
            adapter=AdapterSpec(r=4, lora_alpha=8.0),
            learning_rate=1e-3,
            batch_size=batch_size,
            num_steps=20,
        )
        found.load(spec, slot=slot, step=0, rows=None)
    return found


STEPS, LATER = {4: 0, 2: 0, 9: 0}, {4: 2, 2: 2, 9: 2}
QUOTAS = {4: 2, 2: 2, 9: 2}


def test_the_window_after_the_present_one_is_planned_while_that_runs() -> None:
    planner = ahead()
    assert planner.take(QUOTAS, STEPS, token_budget=128) is None
    planner.expect(QUOTAS, LATER, token_budget=128)
    found = planner.take(QUOTAS, LATER, token_budget=128)
    assert found is not None
    assert sorted({s.adapter for each in found.micro_batches for s in each.samples}) == [0, 1, 2]
    assert planner.counts == {"first": 1, "solver": 1}


@pytest.mark.parametrize("change", ["quotas", "budget", "left"])
def test_another_window_than_was_expected_is_planned_greedily(change: str) -> None:
    planner = ahead()
    planner.expect(QUOTAS, LATER, token_budget=128)
    if change == "left":
        planner.keep({4, 2})
    quotas = {**QUOTAS, 9: 1} if change == "quotas" else {4: 2, 2: 2} if change == "left" else QUOTAS
    assert planner.take(quotas, LATER, token_budget=64 if change == "budget" else 128) is None
    assert planner.counts == {"other steps than expected": 1}


def test_what_is_not_solved_in_time_or_gains_too_little_is_planned_greedily() -> None:
    slow = ahead(is_slow=True)
    slow.expect(QUOTAS, LATER, token_budget=128)
    assert slow.take(QUOTAS, LATER, token_budget=128) is None
    assert slow.counts == {"not solved in time": 1}
    greedy = ahead(least_gain=0.9)
    greedy.expect(QUOTAS, LATER, token_budget=128)
    assert greedy.take(QUOTAS, LATER, token_budget=128) is None
    assert greedy.counts == {"greedy is as good": 1}


def test_without_its_process_windows_are_planned_greedily() -> None:
    planner = ahead(is_dead=True)
    planner.expect(QUOTAS, LATER, token_budget=128)
    assert planner.take(QUOTAS, LATER, token_budget=128) is None
    planner.close()


def test_only_pipelines_are_planned_ahead_where_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def config() -> DecoderConfig:
        raise AssertionError("nothing is planned")

    keys: dict[str, Any] = {"train_rows": ROWS, "device_type": "cpu", "config": config}
    assert windows_ahead(GROUP, microbatches="greedy", **keys) is None
    assert windows_ahead(TensorGroup(size=2), microbatches="solver", **keys) is None
    assert windows_ahead(None, microbatches="auto", **keys) is None
    # two stages on two cores leave none for a solver
    monkeypatch.setattr("cohort.ranks.pipeline.windows_ahead.num_cores", lambda: 2)
    assert windows_ahead(GROUP, microbatches="auto", **keys) is None
