"""Evaluations that are made together are those that are asked for one after another, and decide nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import RankLostError
from cohort.core.events import Evaluated, StepDone
from cohort.engine.train.known_evaluations import KnownEvaluations
from cohort.engine.train.step_loop import StepLoop
from cohort.ranks.step_window import StepWindow
from cohort.scheduling.admission import Capacity
from tests.engine.train.fakes import FakeExecutor, Task, spec_of


class Asked:
    """Evaluates, notes what for, and raises where it is told to."""

    def __init__(self) -> None:
        self.calls: list[dict[int, int]] = []
        self.error: Exception | None = None

    def __call__(self, steps: Mapping[int, int]) -> list[Evaluated]:
        self.calls.append(dict(steps))
        if self.error is not None:
            raise self.error
        return [
            Evaluated(trial_id=key, step=step, validation_loss=key + step, metrics={}, num_tokens=1)
            for key, step in steps.items()
        ]


def test_what_is_known_is_not_asked_for_again_and_only_once_used() -> None:
    asked = Asked()
    evaluations = KnownEvaluations(asked)
    evaluations.make({1: 4, 2: 6, 3: 5})
    assert [event.trial_id for event in evaluations({2: 6, 4: 1})] == [2, 4]
    # put back to an earlier state since
    assert [event.step for event in evaluations({1: 3})] == [3]
    assert [event.step for event in evaluations({2: 6})] == [6]
    assert asked.calls == [{1: 4, 2: 6, 3: 5}, {4: 1}, {1: 3}, {2: 6}]
    evaluations.make({5: 1})
    evaluations({3: 5})
    assert asked.calls[-1] == {3: 5}, "what the last window left is forgotten"


def test_an_error_of_a_trial_comes_again_where_it_is_asked_for_and_a_lost_rank_at_once() -> None:
    asked = Asked()
    evaluations = KnownEvaluations(asked)
    asked.error = ValueError("a bad row")
    evaluations.make({1: 4, 2: 6})
    with pytest.raises(ValueError, match="a bad row"):
        evaluations({1: 4})
    asked.error = RankLostError("gone")
    with pytest.raises(RankLostError):
        evaluations.make({1: 4, 2: 6})


class Windowed(FakeExecutor):
    """Steps in windows; a trial begins each as many rounds later as its number says."""

    def expect_window(self, quotas: Mapping[int, int]) -> None:
        self.expected_windows = [*getattr(self, "expected_windows", ()), dict(quotas)]

    def run(self, quotas: Mapping[int, int]) -> StepWindow:
        rounds: list[tuple[StepDone, ...]] = []
        for turn in range(max(key + count for key, count in quotas.items())):
            rounds.append(tuple(self.step([key for key, count in quotas.items() if key <= turn < key + count])))
        return StepWindow(rounds=tuple(rounds))


def test_trials_that_are_due_after_different_steps_of_a_window_are_evaluated_together(tmp_path: Path) -> None:
    clock = ManualClock()
    executor: Any = Windowed(clock)
    asked = Asked()
    task = Task(tmp_path / "run", executor, [spec_of(0, num_steps=2), spec_of(1, num_steps=4)], clock=clock)
    task.supervisor._evaluate = KnownEvaluations(asked)
    room = Capacity(rank_rows=64, num_slots=8, tokens_per_step=1e9)
    session = StepLoop(executor, capacity=room, clock=clock, stop_requested=lambda: False, window_steps=4)
    session.join(task.supervisor)
    session.run()
    assert asked.calls == [{0: 2, 1: 2}, {1: 4}]
    # the first one ends with the window, the other goes on to its second evaluation
    assert executor.expected_windows == [{1: 2}, {}]
    ticks = [[event.trial_id for event in events if isinstance(event, Evaluated)] for events, _ in task.ticks]
    assert [tick for tick in ticks if tick] == [[0], [1], [1]], "each is recorded after its own step"
