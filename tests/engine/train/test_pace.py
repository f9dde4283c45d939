"""How long a run will take from here, by its own steps: what compiles at first, small packs, selections, no room."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cohort.engine.train import pace as pace_module
from cohort.engine.train.pace import Pace, TrialLeft, seconds_at_pace


def trial(
    warmup: int, later: int, *, evaluations: tuple[int, int] = (0, 0), tokens: float = 100.0, is_judged: bool = False
) -> TrialLeft:
    return TrialLeft(steps=(warmup, later), evaluations=evaluations, tokens_per_step=tokens, is_judged=is_judged)


def paced(*packs: tuple[int, int, float], flat_tokens: float = 0) -> Pace:
    """A run that did 20 steps of each pack of (trials, tokens, seconds); the first ones took ten times as long."""
    pace = Pace(flat_tokens=flat_tokens)
    for num_trials, tokens, seconds in packs:
        for index in range(20):
            slow = 10 if index < (2 if flat_tokens else 1) else 1
            pace.took_step(num_trials, num_tokens=tokens, seconds=slow * seconds)
    return pace


def test_nothing_is_said_before_there_is_a_pace() -> None:
    for flat_tokens, too_few in ((3000, 8 + 4), (0, 1 + 1)):
        pace = Pace(flat_tokens=flat_tokens)
        for _ in range(too_few):
            pace.took_step(8, num_tokens=800, seconds=5.0)
        assert seconds_at_pace([trial(10, 90)], pace=pace) is None
        pace.took_step(8, num_tokens=800, seconds=5.0)
        assert seconds_at_pace([trial(10, 90)], pace=pace) is not None
    assert seconds_at_pace([], pace=pace) == 0


def test_steps_that_compile_do_not_count() -> None:
    assert paced((8, 800, 1.0)).step_seconds(800) == pytest.approx(1.0)
    assert seconds_at_pace([trial(10, 90)] * 8, pace=paced((8, 800, 1.0))) == pytest.approx(100)


def test_one_pack_is_scaled_by_its_tokens_but_not_below_what_a_gpu_does_in_one_go() -> None:
    assert paced((8, 800, 1.0)).step_seconds(200) == pytest.approx(0.25)
    assert paced((8, 800, 1.0), flat_tokens=3000).step_seconds(200) == pytest.approx(1.0)
    assert paced((8, 6000, 1.0), flat_tokens=3000).step_seconds(200) == pytest.approx(0.5)


def test_two_packs_tell_the_constant_from_the_tokens() -> None:
    pace = paced((8, 800, 0.9), (2, 200, 0.3))
    assert pace.step_seconds(400) == pytest.approx(0.5)
    # steps that take longer with fewer tokens are noise: no part is negative
    odd = paced((8, 800, 0.2), (2, 200, 0.3))
    assert odd.step_seconds(10) == odd.step_seconds(10_000) == pytest.approx(0.3)
    steep = paced((8, 800, 1.0), (2, 200, 0.1))
    assert steep.step_seconds(100) == pytest.approx(0.05)


def test_the_selection_saves_what_smaller_packs_save() -> None:
    flat, even = paced((8, 800, 1.0), (2, 200, 1.0)), paced((8, 800, 1.0), (2, 200, 0.25))
    trials = [trial(10, 90)] * 8
    assert seconds_at_pace(trials, pace=flat, kept_share=0.25) == pytest.approx(100)
    assert seconds_at_pace(trials, pace=even, kept_share=0.25) == pytest.approx(10 + 90 * 0.25)
    judged = [trial(0, 90, is_judged=True)] * 2
    assert seconds_at_pace(judged, pace=even, kept_share=0.25) == pytest.approx(90 * 0.25)


def test_trials_of_different_lengths_leave_one_after_the_other() -> None:
    pace = paced((2, 200, 1.0), (1, 100, 0.5))
    assert seconds_at_pace([trial(0, 10), trial(0, 30)], pace=pace) == pytest.approx(10 * 1.0 + 20 * 0.5)


def test_those_that_wait_for_room_step_later() -> None:
    pace = paced((4, 400, 1.0))
    assert seconds_at_pace([trial(0, 10)] * 8, pace=pace, most_trials=4) == pytest.approx(20)


def test_evaluations_are_added_by_how_many_are_measured_at_once() -> None:
    pace = paced((2, 200, 1.0))
    for _ in range(3):
        pace.took_evaluation(2, num_tokens=80, seconds=4.0)
    both = [trial(0, 10, evaluations=(0, 3))] * 2
    assert seconds_at_pace(both, pace=pace) == pytest.approx(10 + 3 * 4.0)


def test_what_comes_after_a_prediction_counts_in_the_next() -> None:
    pace = paced((8, 800, 1.0))
    assert pace.step_seconds(800) == pytest.approx(1.0)
    for _ in range(40):
        pace.took_step(8, num_tokens=800, seconds=3.0)
    assert pace.step_seconds(800) == pytest.approx(3.0)


def test_a_prediction_for_many_trials_looks_at_the_samples_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = paced((8, 800, 0.9), (2, 200, 0.3))
    looks: list[int] = []
    median = pace_module._median

    def counted(group: Sequence[tuple[float, float]]) -> tuple[float, float]:
        looks.append(len(group))
        return median(group)

    monkeypatch.setattr(pace_module, "_median", counted)
    trials = [trial(10 + index, 90) for index in range(100)]
    assert seconds_at_pace(trials, pace=pace) == seconds_at_pace(trials, pace=pace)
    assert len(looks) == 2
