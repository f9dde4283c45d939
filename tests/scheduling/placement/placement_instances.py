"""Tasks for placement tests, drawn from a seed."""

from __future__ import annotations

import random

from cohort.scheduling.admission import Capacity, Request
from cohort.scheduling.cost.model import AdapterWork, StepCost
from cohort.scheduling.cost.shared_time import SharedWork
from cohort.scheduling.placement.records import Cluster, RunningTask, TaskOption, TaskRequest


def task(
    name: str, num_gpus: int, seconds: float, *, arrival: float = 0.0, priority: int = 0, may_span: bool = False
) -> TaskRequest:
    return TaskRequest(
        task_id=name,
        options=(TaskOption(num_gpus=num_gpus, seconds=seconds),),
        arrival_seconds=arrival,
        priority=priority,
        may_span_nodes=may_span,
    )


def small_work(
    key: str = "one base", *, seconds: float = 10.0, num_trials: int = 1, tokens: float = 100.0, start: float = 0.0
) -> SharedWork:
    """Trials of so few tokens that a step of several costs as much as that of one: 0.1 seconds, of 1,000 tokens."""
    work = AdapterWork(r=16, num_tokens=tokens, num_steps=max(1, round(10 * seconds)))
    return SharedWork(
        key=key,
        requests=tuple(Request(trial_id=n, r=16, batch_size=1, mean_length=tokens) for n in range(num_trials)),
        works=dict.fromkeys(range(num_trials), work),
        capacity=Capacity(rank_rows=256, num_slots=16, tokens_per_step=1000.0),
        cost=StepCost(fixed_seconds=0.1, seconds_per_token=0.0),
        start_seconds=start,
    )


def random_instance(seed: int) -> tuple[list[TaskRequest], Cluster, list[RunningTask]]:
    """One to ten tasks on one to three nodes, some with several degrees, arrivals, spans or running neighbours."""
    rng = random.Random(seed)
    size = rng.choice([2, 4, 8])
    num_nodes = rng.choice([1, 1, 2, 3])
    cluster = Cluster(nodes={f"node{n}": tuple(range(n * size, (n + 1) * size)) for n in range(num_nodes)})
    running = []
    for n in range(num_nodes):
        if rng.random() < 0.4:
            held = tuple(range(n * size, n * size + rng.randint(1, size)))
            running.append(RunningTask(task_id=f"running{n}", gpu_ids=held, remaining_seconds=rng.uniform(1, 3000)))
    tasks = []
    for i in range(rng.randint(1, 10)):
        degrees = sorted(rng.sample([d for d in (1, 2, 4, 8) if d <= size], k=1))
        if rng.random() < 0.3:
            degrees = [d for d in (1, 2, 4, 8) if degrees[0] <= d <= size]
        seconds = rng.uniform(60, 20000)
        may_span = num_nodes > 1 and rng.random() < 0.2
        if may_span and rng.random() < 0.5:
            degrees = [2 * size]
        options = tuple(
            TaskOption(num_gpus=d, seconds=seconds * (degrees[0] / d) ** rng.uniform(0.5, 1.0)) for d in degrees
        )
        arrival = rng.choice([0.0, 0.0, 0.0, rng.uniform(0, 10000)])
        tasks.append(TaskRequest(task_id=f"task{i}", options=options, arrival_seconds=arrival, may_span_nodes=may_span))
    return tasks, cluster, running
