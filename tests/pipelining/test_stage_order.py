"""One forward, one backward pass: what the order of every stage keeps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cohort.pipelining.stage_order import Direction, StagePass, most_in_flight, stage_order


@given(st.integers(0, 40), st.integers(1, 6))
def test_every_stage_has_each_micro_batch_once_each_way_and_few_in_flight(count: int, num_stages: int) -> None:
    for stage in range(num_stages):
        order = stage_order(count, stage=stage, num_stages=num_stages)
        for direction in Direction:
            assert [each.micro_batch for each in order if each.direction is direction] == list(range(count))
        in_flight = most = 0
        for each in order:
            in_flight += 1 if each.direction is Direction.FORWARD else -1
            assert in_flight >= 0
            most = max(most, in_flight)
        assert most == min(count, most_in_flight(stage, num_stages=num_stages))


@given(st.integers(1, 40), st.integers(1, 6))
def test_what_ends_in_a_micro_batch_is_known_on_stage_0_before_the_forward_pass_of_the_next_batch(
    count: int, num_stages: int
) -> None:
    order = stage_order(count, stage=0, num_stages=num_stages)
    places = {each: place for place, each in enumerate(order)}
    for k in range(count - num_stages):
        ended = places[StagePass(Direction.BACKWARD, k)]
        assert ended < places[StagePass(Direction.FORWARD, k + num_stages)]
        # and no sooner: the pipe is full
        assert ended > places[StagePass(Direction.FORWARD, k + num_stages - 1)]
