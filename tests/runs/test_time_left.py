"""How long a run will take from here, by tokens a second or by its own steps: first packs, small ones, selections."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cohort.runs import time_left
from cohort.runs.time_left import MeasuredPace, StepsAhead, TokenRate, seconds_left


def ahead(done: int, *, tokens_per_step: float = 10.0) -> StepsAhead:
    return StepsAhead(steps_done=done, planned_steps=100, warmup_steps=20, tokens_per_step=tokens_per_step)


def left(*trials: StepsAhead, evaluated: int = 0, rate: float | None = 5.0) -> float | None:
    return seconds_left(trials, pace=TokenRate.of(rate, trained=400, evaluated=evaluated), kept_share=0.25)


def test_before_the_selection_a_share_of_the_trials_is_expected_to_go_on() -> None:
    # parked at the end of warm-up, and half way through it: 10 more steps of warm-up, then 80 of each with a quarter
    assert left(ahead(20), ahead(10)) == pytest.approx((10 + 0.25 * (80 + 80)) * 10 / 5)


def test_after_the_selection_all_that_are_left_go_on() -> None:
    assert left(ahead(20), ahead(60)) == pytest.approx((80 + 40) * 10 / 5)


def test_a_new_trial_does_not_put_those_in_doubt_that_were_selected() -> None:
    assert left(ahead(0), ahead(60)) == pytest.approx((20 + 0.25 * 80 + 40) * 10 / 5)


def test_evaluations_take_their_part() -> None:
    assert left(ahead(60), evaluated=100) == pytest.approx(40 * 10 * 1.25 / 5)


def test_nothing_can_be_said_without_a_rate_and_nothing_is_left_at_the_end() -> None:
    assert left(ahead(60), rate=None) is None
    assert left() == 0


def trial(
    warmup: int, later: int, *, evaluations: tuple[int, int] = (0, 0), tokens: float = 100.0, is_judged: bool = False
) -> StepsAhead:
    """A trial with this much ahead in warm-up and after it; one that is judged stands a step after warm-up."""
    done, warmup = (2, 1) if is_judged else (0, warmup)
    planned = done + warmup * (not is_judged) + later
    first = [step + 1 for step in range(evaluations[0])]
    last = [planned - step for step in range(evaluations[1])]
    found = StepsAhead(
        steps_done=done,
        planned_steps=planned,
        warmup_steps=warmup,
        tokens_per_step=tokens,
        evaluation_steps=tuple(sorted([*first, *last])),
    )
    assert found.evaluations_left == evaluations
    return found


def paced(*packs: tuple[int, int, float], flat_tokens: float = 0) -> MeasuredPace:
    """A run that did 20 steps of each pack of (trials, tokens, seconds); the first ones took ten times as long."""
    pace = MeasuredPace(flat_tokens=flat_tokens)
    for num_trials, tokens, seconds in packs:
        for index in range(20):
            slow = 10 if index < (2 if flat_tokens else 1) else 1
            pace.took_step(num_trials, num_tokens=tokens, seconds=slow * seconds)
    return pace


def test_nothing_is_said_before_there_is_a_pace() -> None:
    for flat_tokens, too_few in ((3000, 8 + 4), (0, 1 + 1)):
        pace = MeasuredPace(flat_tokens=flat_tokens)
        for _ in range(too_few):
            pace.took_step(8, num_tokens=800, seconds=5.0)
        assert seconds_left([trial(10, 90)], pace=pace) is None
        pace.took_step(8, num_tokens=800, seconds=5.0)
        assert seconds_left([trial(10, 90)], pace=pace) is not None
    assert seconds_left([], pace=pace) == 0


def test_steps_that_compile_do_not_count() -> None:
    assert paced((8, 800, 1.0)).step_seconds(800) == pytest.approx(1.0)
    assert seconds_left([trial(10, 90)] * 8, pace=paced((8, 800, 1.0))) == pytest.approx(100)


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
    assert seconds_left(trials, pace=flat, kept_share=0.25) == pytest.approx(100)
    assert seconds_left(trials, pace=even, kept_share=0.25) == pytest.approx(10 + 90 * 0.25)
    judged = [trial(0, 90, is_judged=True)] * 2
    assert seconds_left(judged, pace=even, kept_share=0.25) == pytest.approx(90 * 0.25)


def test_trials_of_different_lengths_leave_one_after_the_other() -> None:
    pace = paced((2, 200, 1.0), (1, 100, 0.5))
    assert seconds_left([trial(0, 10), trial(0, 30)], pace=pace) == pytest.approx(10 * 1.0 + 20 * 0.5)


def test_those_that_wait_for_room_step_later() -> None:
    pace = paced((4, 400, 1.0))
    assert seconds_left([trial(0, 10)] * 8, pace=pace, most_trials=4) == pytest.approx(20)


def test_evaluations_are_added_by_how_many_are_measured_at_once() -> None:
    pace = paced((2, 200, 1.0))
    for _ in range(3):
        pace.took_evaluation(2, num_tokens=80, seconds=4.0)
    both = [trial(0, 10, evaluations=(0, 3))] * 2
    assert seconds_left(both, pace=pace) == pytest.approx(10 + 3 * 4.0)


def test_what_comes_after_a_prediction_counts_in_the_next() -> None:
    pace = paced((8, 800, 1.0))
    assert pace.step_seconds(800) == pytest.approx(1.0)
    for _ in range(40):
        pace.took_step(8, num_tokens=800, seconds=3.0)
    assert pace.step_seconds(800) == pytest.approx(3.0)


def test_a_prediction_for_many_trials_looks_at_the_samples_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = paced((8, 800, 0.9), (2, 200, 0.3))
    looks: list[int] = []
    median = time_left._median

    def counted(group: Sequence[tuple[float, float]]) -> tuple[float, float]:
        looks.append(len(group))
        return median(group)

    monkeypatch.setattr(time_left, "_median", counted)
    trials = [trial(10 + index, 90) for index in range(100)]
    assert seconds_left(trials, pace=pace) == seconds_left(trials, pace=pace)
    assert len(looks) == 2
