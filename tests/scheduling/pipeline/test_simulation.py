"""The times of a pipeline: no stage does two things at once, and none waits for itself."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.scheduling.pipeline.simulation import simulate_pipeline
from cohort.scheduling.pipeline.stage_order import Direction, StagePass


@st.composite
def seconds(draw: st.DrawFn) -> tuple[list[list[float]], list[list[float]], float]:
    num_stages, count = draw(st.integers(1, 5)), draw(st.integers(1, 20))
    of_a_pass = st.floats(0.0, 5.0)
    both = [
        draw(st.lists(st.lists(of_a_pass, min_size=count, max_size=count), min_size=num_stages, max_size=num_stages))
        for _ in range(2)
    ]
    return both[0], both[1], draw(st.floats(0.0, 1.0))


@given(seconds())
def test_passes_wait_for_what_they_read_and_for_their_stage(
    given_seconds: tuple[list[list[float]], list[list[float]], float],
) -> None:
    forward, backward, transfer = given_seconds
    times = simulate_pipeline(forward, backward, transfer_seconds=transfer)
    when = {(each.stage, each.what): each for own in times.passes for each in own}
    num_stages, count = len(forward), len(forward[0])
    assert len(when) == 2 * num_stages * count
    for own in times.passes:
        for before, after in itertools.pairwise(own):
            assert after.begin >= before.end
    for (stage, what), each in when.items():
        ahead = stage - 1 if what.direction is Direction.FORWARD else stage + 1
        if (ahead, what) in when:
            assert each.begin >= when[ahead, what].end + transfer
        if what.direction is Direction.BACKWARD:
            assert each.begin >= when[stage, StagePass(Direction.FORWARD, what.micro_batch)].end
    assert times.busy_seconds == pytest.approx([sum(f) + sum(b) for f, b in zip(forward, backward, strict=True)])


def test_equal_passes_idle_as_the_arithmetic_says() -> None:
    for num_stages in (2, 4):
        count = 12
        equal = [[1.0] * count for _ in range(num_stages)]
        times = simulate_pipeline(equal, equal)
        # filling and draining: 2 (S - 1) passes
        assert times.seconds == 2 * count + 2 * (num_stages - 1)
        assert times.bubble_ratio == pytest.approx((num_stages - 1) / (count + num_stages - 1))
    alone = simulate_pipeline([[1.0, 2.0]], [[1.0, 1.0]])
    assert (alone.seconds, alone.bubble_ratio) == (5.0, 0.0)


def test_no_micro_batches_take_no_time() -> None:
    assert simulate_pipeline([[], []], [[], []]).bubble_ratio == 0.0
