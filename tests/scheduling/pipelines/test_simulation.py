"""The times of a pipeline: no stage does two things at once, and none waits for itself."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.scheduling.pipelines.pipeline_schedule import Direction, StagePass
from cohort.scheduling.pipelines.simulation import simulate_pipeline


def drawn(seed: int) -> tuple[list[list[list[float]]], float]:
    rng = random.Random(seed)
    num_stages, count = rng.randint(1, 5), rng.randint(1, 20)
    of_all = [
        [[rng.choice([0.0, rng.random()]) for _ in range(count)] for _ in range(num_stages)]
        for _ in range(rng.choice([2, 3]))
    ]
    return of_all, rng.choice([0.0, rng.random()])


@given(st.integers(0, 10_000))
def test_passes_wait_for_what_they_read_and_for_their_stage(seed: int) -> None:
    (forward, backward, *head), transfer = drawn(seed)
    times = simulate_pipeline(forward, backward, head_seconds=head[0] if head else None, transfer_seconds=transfer)
    when = {(each.stage, each.what): each for own in times.passes for each in own}
    num_stages, count = len(forward), len(forward[0])
    assert len(when) == (2 + len(head)) * num_stages * count
    for own in times.passes:
        for before, after in itertools.pairwise(own):
            assert after.begin >= before.end
    last = num_stages - 1
    for (stage, what), each in when.items():
        if what.direction is Direction.HEAD:
            assert each.begin >= when[last, StagePass(Direction.FORWARD, what.micro_batch)].end
            passed = when[last, StagePass(Direction.BACKWARD, what.micro_batch)]
            assert passed.begin >= each.end + transfer * (stage != last)
            continue
        ahead = stage - 1 if what.direction is Direction.FORWARD else stage + 1
        if (ahead, what) in when:
            assert each.begin >= when[ahead, what].end + transfer
        if what.direction is Direction.BACKWARD:
            assert each.begin >= when[stage, StagePass(Direction.FORWARD, what.micro_batch)].end
    assert times.busy_seconds == pytest.approx(
        [sum(map(sum, own)) for own in zip(forward, backward, *head, strict=True)]
    )


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


def test_a_share_of_the_head_on_every_stage_is_hidden() -> None:
    """As long as passes are equally long and shares shorter, stages wait at the two ends of the window alone."""
    for num_stages in (2, 3, 4, 6):
        count = 200
        passes, shares = ([[seconds] * count for _ in range(num_stages)] for seconds in (1.0, 0.1))
        times = simulate_pipeline(passes, passes, head_seconds=shares)
        assert times.seconds < 2.1 * count + 3 * num_stages


def test_no_micro_batches_take_no_time() -> None:
    assert simulate_pipeline([[], []], [[], []]).bubble_ratio == 0.0
