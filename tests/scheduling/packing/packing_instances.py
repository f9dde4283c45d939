"""Packing problems for tests: a made-up decoder on made-up GPUs, costs and memory that make packing worth it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from cohort.scheduling.cost.model import AdapterWork, CostModel, Interconnect, Knee, StepCost
from cohort.scheduling.packing.records import PackingProblem, PackItem

LINK = Interconnect(bytes_per_second=2e11, seconds_per_collective=2e-5, collectives_per_step=100, bytes_per_token=8e3)


def trial(trial_id: int, *, r: int, batch_size: int, length: int = 100, examples: int = 200) -> PackItem:
    work = AdapterWork(
        r=r,
        num_tokens=batch_size * length,
        num_steps=-(-examples // batch_size),
        sum_squares=batch_size * length**2,
    )
    return PackItem(trial_id=trial_id, work=work, state_bytes={d: 1000 * r // d for d in (1, 2, 4, 8)})


def random_trials(seed: int, count: int) -> list[PackItem]:
    rng = random.Random(seed)
    return [trial(i, r=rng.choice([8, 16, 32, 64]), batch_size=rng.choice([1, 2, 4, 8])) for i in range(count)]


def problem(
    trials: Sequence[PackItem],
    *,
    num_gpus: int = 4,
    room: float = 200_000.0,
    base: float = 0.0,
    fixed: float = 0.05,
    token_budget: int | None = None,
) -> PackingProblem:
    """``base`` bytes of each GPU are taken by the base model at degree 1, half as many at degree 2, ..."""
    cost = StepCost(
        fixed_seconds=fixed,
        seconds_per_token=4e-5,
        seconds_per_adapter=5e-4,
        seconds_per_rank_token=2e-8,
        seconds_per_square=1e-9,
        knees=(Knee(at_tokens=600, seconds_per_token=3e-5),),
    )
    degrees = [d for d in (1, 2, 4, 8) if d <= num_gpus]
    return PackingProblem(
        trials=tuple(trials),
        num_gpus=num_gpus,
        cost=CostModel.from_one_gpu(cost, degrees=degrees, interconnect=LINK),
        room_bytes={d: room - base / d for d in degrees},
        activation_bytes=1000,
        activation_bytes_per_token=20,
        token_budget=token_budget,
    )
