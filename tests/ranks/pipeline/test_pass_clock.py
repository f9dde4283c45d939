"""What stages did, by their clocks: the static order, and no pass before what it needs, on random windows."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.ranks.pipeline import staged_executor
from cohort.ranks.pipeline.pass_clock import PassClock, joined_times
from cohort.ranks.pipeline.shared_head import HeadRows, SharedHead
from cohort.ranks.pipeline.window_plan import PlannedWindow, plan_window
from cohort.ranks.rank_group import PipelineGroup
from cohort.scheduling.pipelines.pipeline_schedule import Direction, StagePass
from cohort.scheduling.pipelines.simulation import PipelineTimes, simulate_pipeline
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec
from tests.ranks.pipeline.stage_threads import stage_threads
from tests.ranks.pipeline.test_staged_executor import spec_of
from tests.training.small_models import random_rows, save_llama

PLAN = PipelineGroup(cuts=(0, 1, 2, 4))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_llama(folder, num_layers=4)
    return folder


def required(times: PipelineTimes, stage: int, what: StagePass) -> float | None:
    """Return when the neighbour's pass began that a pass follows; None where there is none."""
    ends = {(each.stage, each.what): each.begin for own in times.passes for each in own}
    last = len(times.passes) - 1
    if what.direction is Direction.FORWARD:
        return ends[stage - 1, what] if stage else None
    if what.direction is Direction.HEAD:
        return ends[last, replace(what, direction=Direction.FORWARD)]
    if stage == last:
        return ends[stage, replace(what, direction=Direction.FORWARD)]
    return ends[stage + 1, what]


@pytest.mark.parametrize("seed", range(4))
def test_stages_run_in_the_order_of_the_simulator(model: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(PLAN, head_layers=2.5) if seed == 3 else PLAN
    planned: list[PlannedWindow] = []

    def noted(*args: Any, **kwargs: Any) -> PlannedWindow:
        planned.append(plan_window(*args, **kwargs))
        return planned[-1]

    monkeypatch.setattr(staged_executor, "plan_window", noted)
    # stages with rows of the shared head, by micro-batch
    priced: set[tuple[int, int]] = set()
    price = SharedHead.price

    def noted_price(head: SharedHead, held: HeadRows, *, number: int, clock: PassClock) -> None:
        if held.parts[head._stage]:
            priced.add((head._stage, number))
        price(head, held, number=number, clock=clock)

    monkeypatch.setattr(SharedHead, "price", noted_price)
    rng = random.Random(seed)
    settings = ExecutorSettings(
        num_slots=4, num_rank_rows=64, token_budget=rng.choice([20, 60]), evaluation_token_budget=60
    )
    stages = stage_threads(model, plan, settings=settings, rows=random_rows(12, seed=seed, longest=20))
    quotas = {trial_id: rng.randint(1, 3) for trial_id in range(rng.randint(1, 3))}
    for trial_id in quotas:
        spec: TrialSpec = replace(spec_of(trial_id), batch_size=rng.randint(1, 4))
        stages.all(lambda stage, spec=spec: stage.load(spec))  # type: ignore[misc]
    stages.all(lambda stage: stage.run(quotas))
    times = joined_times(stages.all(lambda stage: stage.pass_times()))
    has_samples = [bool(each.entries) for each in planned[0].micro_batches]
    assert planned[0].shares_head == (seed == 3)
    seconds = [[1.0] * len(has_samples) for _ in times.passes]
    simulated = simulate_pipeline(seconds, seconds, head_seconds=seconds if planned[0].shares_head else None)
    for own, expected in zip(times.passes, simulated.passes, strict=True):
        assert [each.what for each in own] == [each.what for each in expected]
        # a no-op waits for no message, nor does a share of no rows
        for each in (each for each in own if has_samples[each.what.micro_batch]):
            if each.what.direction is Direction.HEAD and (each.stage, each.what.micro_batch) not in priced:
                continue
            needed = required(times, each.stage, each.what)
            assert needed is None or each.begin >= needed
    assert 0.0 <= times.bubble_ratio < 1.0
    # NCCL knows no tags: what arrives next on a link is what was sent next
    links: list[Any] = [member._links for member in stages.stages]
    for stage, own_links in enumerate(links):
        for (sender, of_head), received in own_links.received_from.items():
            assert received == links[sender].sent_to[stage, of_head]


def test_times_count_from_the_first_pass() -> None:
    clock = PassClock(torch.device("cpu"), stage=0)
    clock.start_window()
    clock.begin()
    clock.end(StagePass(Direction.FORWARD, 0))
    (only,) = joined_times([clock.times(), ()]).passes[0]
    assert only.begin == 0.0
    assert only.end >= 0.0
    clock.start_window()
    assert clock.times() == ()
