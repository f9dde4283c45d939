"""Windows of steps: what they bring, and how those of several ranks are joined. The same bits: tests/end_to_end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from unittest.mock import Mock

import pytest

from cohort.core.events import StepDone
from cohort.ranks.step_window import (
    MOST_AHEAD_STEPS,
    MOST_STEPS,
    StepWindow,
    ahead_steps,
    joined,
    pipeline_window_steps,
    run_window,
    window_steps,
)
from cohort.training.launched_step import LaunchedStep
from cohort.training.optimizers.optimizer import UnfinishedUpdateError


def event(trial_id: int, step: int, *, loss: float = 1.0) -> StepDone:
    return StepDone(trial_id=trial_id, step=step, loss=loss, grad_norm=1.0, learning_rate=0.1, num_tokens=4)


class Trials:
    """Steps trials; one of them raises at a step, or has a loss that is no number."""

    def __init__(
        self, *, fails: Exception | None = None, at: int = 0, nan: int | None = None, launches_ahead: bool = False
    ) -> None:
        self.launches_ahead = launches_ahead
        # what happened, in order: rounds that were launched and read
        self.order: list[str] = []
        self.steps: dict[int, int] = {}
        self.fails, self.at, self.nan = fails, at, nan
        self.resident = (1, 2, 3, 4, 5)
        self.expected: list[list[int]] = []

    def expect_step(self, trial_ids: Collection[int]) -> None:
        self.expected.append([*trial_ids])

    def launch_step(self, trial_ids: Sequence[int] | None = None) -> LaunchedStep:
        assert trial_ids is not None
        if self.fails is not None and self.steps.get(trial_ids[0], 0) == self.at:
            raise self.fails
        done = []
        for trial_id in trial_ids:
            self.steps[trial_id] = step = self.steps.get(trial_id, 0) + 1
            done.append(event(trial_id, step, loss=float("nan") if trial_id == self.nan else 1.0))
        number = sum("launched" in each for each in self.order)
        self.order.append(f"launched {number}")

        class Launched(LaunchedStep):
            def events(own) -> tuple[StepDone, ...]:  # noqa: N805 - self is the trials'
                self.order.append(f"read {number}")
                return tuple(done)

        return Launched(samples=None, numbers=tuple)


def test_each_trial_takes_its_steps() -> None:
    trials = Trials()
    window = run_window(trials, {3: 2, 1: 1, 2: 4, 5: 0})
    assert trials.steps == {3: 2, 1: 1, 2: 4}
    assert [[each.trial_id for each in events] for events in window.rounds] == [[3, 1, 2], [3, 2], [2], [2]]
    assert trials.expected == [[3, 2], [2], [2], [1, 2, 3, 4, 5]]
    assert window.error is None


def test_a_step_is_launched_before_the_one_before_it_is_read_where_the_host_is_free() -> None:
    in_turn, ahead = Trials(), Trials(launches_ahead=True)
    assert run_window(in_turn, {1: 2, 2: 3}) == run_window(ahead, {1: 2, 2: 3})
    assert in_turn.order == ["launched 0", "read 0", "launched 1", "read 1", "launched 2", "read 2"]
    assert ahead.order == ["launched 0", "launched 1", "read 0", "launched 2", "read 1", "read 2"]


@pytest.mark.parametrize("launches_ahead", [False, True])
def test_a_trial_whose_loss_is_no_number_takes_no_step_that_is_launched_after_that_is_known(
    launches_ahead: bool,
) -> None:
    trials = Trials(nan=1, launches_ahead=launches_ahead)
    window = run_window(trials, {1: 5, 2: 5})
    assert trials.steps == {1: 1 + launches_ahead, 2: 5}
    # what it has taken is told: its state is further than a step that ended it
    assert [len(events) for events in window.rounds] == ([2, 2, 1, 1, 1] if launches_ahead else [2, 1, 1, 1, 1])


@pytest.mark.parametrize("launches_ahead", [False, True])
@pytest.mark.parametrize(("error", "broken"), [(RuntimeError("bad"), ()), (UnfinishedUpdateError("half"), (1, 2))])
def test_an_error_ends_the_window_and_keeps_the_steps_before_it(
    error: Exception, broken: tuple[int, ...], launches_ahead: bool
) -> None:
    window = run_window(Trials(fails=error, at=2, launches_ahead=launches_ahead), {1: 5, 2: 5})
    assert len(window.rounds) == 2
    assert window.error is error
    assert window.broken == broken


def test_trials_whose_step_cannot_be_read_go_back_to_a_state() -> None:
    # the bank is after both launched steps, and only the first is on record
    trials, error = Trials(launches_ahead=True), RuntimeError("no numbers")
    launch = trials.launch_step

    def launch_step(trial_ids: Sequence[int] | None = None) -> LaunchedStep:
        launched = launch(trial_ids)
        if trials.steps[1] == 2:
            object.__setattr__(launched, "events", Mock(side_effect=error))
        return launched

    trials.launch_step = launch_step  # type: ignore[method-assign]
    window = run_window(trials, {1: 4, 2: 4, 3: 0})
    assert [len(events) for events in window.rounds] == [2]
    assert (window.error, window.broken) == (error, (1, 2))


def test_windows_of_ranks_are_joined_round_by_round() -> None:
    error = RuntimeError("bad")
    one = StepWindow(rounds=((event(0, 1),), (event(0, 2),)), error=error, broken=(0,))
    other = StepWindow(rounds=((event(1, 7), event(2, 1)), (event(1, 8),), (event(1, 9),)))
    window = joined([one, other])
    found = [[(each.trial_id, each.step) for each in events] for events in window.rounds]
    assert found == [[(0, 1), (1, 7), (2, 1)], [(0, 2), (1, 8)], [(1, 9)]]
    assert (window.error, window.broken) == (error, (0,))
    assert joined([]).rounds == ()


def test_a_pipeline_fills_and_drains_in_a_small_part_of_its_window() -> None:
    assert pipeline_window_steps(num_stages=2, micro_batches_per_step=100) == 1
    assert pipeline_window_steps(num_stages=2, micro_batches_per_step=8) == 5
    assert pipeline_window_steps(num_stages=8, micro_batches_per_step=0.5) == MOST_STEPS


def test_windows_take_about_two_seconds_and_one_rank_has_none() -> None:
    assert window_steps(num_ranks=1, device_type="cpu", flops_per_step=1.0) == 1
    assert ahead_steps(device_type="cpu", flops_per_step=1e10) == 4
    # nine trials of 160 tokens on an 8B model
    assert ahead_steps(device_type="cuda", flops_per_step=4 * 7e9 * 9 * 160) == 19
    assert ahead_steps(device_type="cuda", flops_per_step=1.0) == MOST_AHEAD_STEPS
    assert window_steps(num_ranks=2, device_type="cpu", flops_per_step=1.0) == MOST_STEPS
    assert window_steps(num_ranks=2, device_type="cpu", flops_per_step=1e10) == 4
    # 16,000 tokens of an 8B model
    assert window_steps(num_ranks=4, device_type="cuda", flops_per_step=4 * 8e9 * 16_000) == 1
