"""One forward, one backward pass: what the order of every stage keeps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cohort.scheduling.pipelines.stage_order import Direction, StagePass, batch_distance, most_in_flight, stage_order


@given(st.integers(0, 40), st.integers(1, 6), st.booleans())
def test_every_stage_has_each_micro_batch_once_each_way_and_few_in_flight(
    count: int, num_stages: int, shares_head: bool
) -> None:
    for stage in range(num_stages):
        order = stage_order(count, stage=stage, num_stages=num_stages, shares_head=shares_head)
        for direction in Direction:
            passed = [each.micro_batch for each in order if each.direction is direction]
            assert passed == ([] if direction is Direction.HEAD and not shares_head else list(range(count)))
        in_flight = most = 0
        for each in order:
            in_flight += {Direction.FORWARD: 1, Direction.BACKWARD: -1, Direction.HEAD: 0}[each.direction]
            assert in_flight >= 0
            most = max(most, in_flight)
        assert most == min(count, most_in_flight(stage, num_stages=num_stages, shares_head=shares_head))


@given(st.integers(1, 40), st.integers(1, 6), st.booleans())
def test_what_ends_in_a_micro_batch_is_known_on_stage_0_before_the_forward_pass_of_the_next_batch(
    count: int, num_stages: int, shares_head: bool
) -> None:
    order = stage_order(count, stage=0, num_stages=num_stages, shares_head=shares_head)
    places = {each: place for place, each in enumerate(order)}
    distance = batch_distance(num_stages, shares_head=shares_head)
    for k in range(count - distance):
        ended = places[StagePass(Direction.BACKWARD, k)]
        assert ended < places[StagePass(Direction.FORWARD, k + distance)]
        # and no sooner: the pipe is full
        assert ended > places[StagePass(Direction.FORWARD, k + distance - 1)]


@given(st.integers(0, 40), st.integers(1, 6))
def test_a_share_of_the_head_stands_between_the_two_passes_of_its_micro_batch(count: int, num_stages: int) -> None:
    for stage in range(num_stages):
        order = stage_order(count, stage=stage, num_stages=num_stages, shares_head=True)
        places = {each: place for place, each in enumerate(order)}
        for k in range(count):
            share = places[StagePass(Direction.HEAD, k)]
            assert places[StagePass(Direction.FORWARD, k)] < share < places[StagePass(Direction.BACKWARD, k)]
