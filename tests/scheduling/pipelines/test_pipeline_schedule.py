"""One forward, one backward pass: what the order of every stage keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.scheduling.pipelines.pipeline_schedule import (
    Direction,
    StagePass,
    batch_distance,
    most_in_flight,
    stage_order,
)


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


@pytest.mark.parametrize(
    ("stage", "order"),
    [
        # the share of the next micro-batch is computed between a backward and a forward pass
        (3, "F0 F1 H0 B0 H1 F2 B1 H2 F3 B2 H3 F4 B3 H4 B4"),
        # the same moment lies within the forward pass of the stage before: the share follows it
        (2, "F0 F1 F2 H0 H1 B0 F3 H2 B1 F4 H3 B2 H4 B3 B4"),
        (1, "F0 F1 F2 F3 H0 H1 B0 H2 F4 B1 H3 B2 H4 B3 B4"),
        (0, "F0 F1 F2 F3 F4 H0 H1 H2 B0 H3 B1 H4 B2 B3 B4"),
    ],
)
def test_shares_of_the_head_come_before_the_forward_pass_on_every_other_stage(stage: int, order: str) -> None:
    passes = stage_order(5, stage=stage, num_stages=4, shares_head=True)
    assert " ".join(f"{each.direction.name[0]}{each.micro_batch}" for each in passes) == order
