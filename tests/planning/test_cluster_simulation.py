"""A fake cluster: nothing overlaps, nothing is lost, and the same seed has the same luck."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from cohort.core.errors import InputError
from cohort.planning.cluster_simulation import simulate
from cohort.planning.simulation_records import RunSegment, SimulatedTask, SimulationSettings
from cohort.scheduling.placement.cluster_events import GpusGained, GpusLost
from cohort.scheduling.placement.placement_settings import PlacementSettings
from cohort.scheduling.placement.records import Cluster
from cohort.scheduling.placement.task_order import ListPolicy
from cohort.tuning.replay import replay_curves
from tests.scheduling.placement.placement_instances import small_work, task
from tests.tuning.loss_curves import by_rank, curve

QUICK = PlacementSettings(work_limit=0.1)


def tasks_of(count: int, *, trials: int = 10) -> list[SimulatedTask]:
    widths = [1, 1, 2, 1, 4, 2]
    return [
        SimulatedTask(request=task(f"t{i}", widths[i % 6], 600 + 371 * (i * 7 % 11)), num_trials=trials)
        for i in range(count)
    ]


def check_segments(segments: Sequence[RunSegment], *, ended: int) -> None:
    """No GPU is held twice at once, every task ends once and holds nothing after."""
    by_gpu = defaultdict(list)
    by_task = defaultdict(list)
    for segment in segments:
        assert segment.end_seconds >= segment.start_seconds
        by_task[segment.task_id].append(segment)
        for gpu in segment.gpu_ids:
            by_gpu[gpu].append(segment)
    for held in (*by_gpu.values(), *by_task.values()):
        for earlier, later in pairwise(sorted(held, key=lambda segment: segment.start_seconds)):
            assert later.start_seconds >= earlier.end_seconds - 1e-6
    for held in by_task.values():
        assert [segment.has_ended for segment in held].count(True) <= 1
    assert sum(segment.has_ended for segment in segments) == ended


def test_without_surprises_the_plan_is_what_happens() -> None:
    report = simulate(tasks_of(9), Cluster.of_one_node(4))
    check_segments(report.segments, ended=9)
    assert report.makespan_seconds <= report.planned_makespan_seconds * (1 + 1e-9)
    assert report.num_failures == report.num_evictions == 0
    assert report.unfinished == ()
    assert 0.5 < report.utilisation <= 1


def test_early_exits_from_recorded_curves_shorten_everything() -> None:
    recorded = [curve(i, validation=[3 - 0.1 * i - 0.01 * step for step in range(40)]) for i in range(8)]
    # of eight trials the defaults end none
    replayed = replay_curves(recorded, by_rank())
    shares = tuple(replayed.steps[c.candidate.trial_id] / c.candidate.planned_steps for c in recorded)
    assert min(shares) < 1
    full = simulate(tasks_of(9), Cluster.of_one_node(4))
    settings = SimulationSettings(exit_shares=shares, placement=QUICK)
    early = simulate(tasks_of(9), Cluster.of_one_node(4), settings=settings)
    check_segments(early.segments, ended=9)
    assert early.makespan_seconds < 0.8 * full.makespan_seconds
    assert early.planned_makespan_seconds == full.planned_makespan_seconds, "exits are not known beforehand"
    assert early == simulate(tasks_of(9), Cluster.of_one_node(4), settings=settings)
    other = SimulationSettings(exit_shares=shares, placement=QUICK, seed=1)
    assert early != simulate(tasks_of(9), Cluster.of_one_node(4), settings=other)


def test_knowing_the_end_early_is_not_worse() -> None:
    base = SimulationSettings(exit_shares=(0.1, 0.3, 1.0), placement=QUICK)
    known = SimulationSettings(exit_shares=(0.1, 0.3, 1.0), placement=QUICK, reestimate_share=0.05)
    plain = simulate(tasks_of(12), Cluster.of_one_node(4), settings=base)
    learnt = simulate(tasks_of(12), Cluster.of_one_node(4), settings=known)
    check_segments(learnt.segments, ended=12)
    assert learnt.num_replans > plain.num_replans
    # better knowledge may still choose another order; it does not cost much
    assert learnt.makespan_seconds <= 1.1 * plain.makespan_seconds


def test_failures_cost_time_and_every_task_still_ends() -> None:
    calm = simulate(tasks_of(8), Cluster.of_one_node(4), settings=SimulationSettings(placement=QUICK))
    settings = SimulationSettings(failures_per_gpu_hour=1.0, checkpoint_seconds=300, placement=QUICK)
    rough = simulate(tasks_of(8), Cluster.of_one_node(4), settings=settings)
    check_segments(rough.segments, ended=8)
    assert rough.num_failures > 0
    assert rough.gpu_seconds_held > calm.gpu_seconds_held
    # what is done again is at most a checkpoint interval for each GPU of each failure
    assert rough.gpu_seconds_held <= calm.gpu_seconds_held + rough.num_failures * 4 * 300 + 1e-3


def test_lost_gpus_come_back() -> None:
    events: list[GpusLost | GpusGained] = [
        GpusLost(at_seconds=500.0, gpu_ids=(0, 1, 2)),
        GpusGained(at_seconds=900.0, node="local", gpu_ids=(10, 11, 12)),
    ]
    settings = SimulationSettings(placement=QUICK, checkpoint_seconds=100)
    report = simulate(tasks_of(8), Cluster.of_one_node(4), settings=settings, gpu_events=events)
    check_segments(report.segments, ended=8)
    assert report.unfinished == ()
    assert all(s.end_seconds <= 500 for s in report.segments if set(s.gpu_ids) & {0, 1, 2})
    for_good = simulate(tasks_of(8), Cluster.of_one_node(4), settings=settings, gpu_events=events[:1])
    assert set(for_good.unfinished) == {"t2", "t4", "t5"}, "one GPU is left, and these need more"


def test_urgent_arrivals_evict_and_everyone_ends() -> None:
    arrivals = [SimulatedTask(request=task("urgent", 4, 200, arrival=700, priority=1))]
    settings = SimulationSettings(placement=QUICK, checkpoint_seconds=100)
    report = simulate([*tasks_of(6), *arrivals], Cluster.of_one_node(4), settings=settings)
    check_segments(report.segments, ended=7)
    urgent = next(segment for segment in report.segments if segment.task_id == "urgent")
    assert urgent.start_seconds == 700
    assert report.num_evictions > 0


@pytest.mark.parametrize("policy", list(ListPolicy))
def test_list_policies_run_in_the_same_world(policy: ListPolicy) -> None:
    shares = (0.05, 0.05, 0.3, 1.0)
    planned = simulate(
        tasks_of(10), Cluster.of_one_node(4), settings=SimulationSettings(exit_shares=shares, placement=QUICK)
    )
    listed = simulate(
        tasks_of(10), Cluster.of_one_node(4), settings=SimulationSettings(exit_shares=shares, policy=policy)
    )
    check_segments(listed.segments, ended=10)
    # the same luck: both held GPUs for the same work
    assert listed.gpu_seconds_held == pytest.approx(planned.gpu_seconds_held)


def test_a_task_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(InputError, match="task big"):
        simulate([SimulatedTask(request=task("big", 8, 1))], Cluster.of_one_node(4))


def test_many_tasks_on_many_gpus_take_seconds() -> None:
    few = PlacementSettings(work_limit=0.05, most_solver_tasks=12)
    settings = SimulationSettings(exit_shares=(0.05, 0.2, 1.0), placement=few)
    begun = time.process_time()
    report = simulate(tasks_of(150), Cluster.of_one_node(32), settings=settings)
    check_segments(report.segments, ended=150)
    # two or three seconds; twenty would mean that the number of plans or their cost has grown tenfold
    assert time.process_time() - begun < 20


def sharing(name: str, seconds: float, *, arrival: float = 0.0, **fields: float) -> SimulatedTask:
    request = task(name, 1, seconds, arrival=arrival)
    return SimulatedTask(request=replace(request, work=small_work(seconds=seconds)), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("second", [0.0, 4.0])
def test_tasks_that_share_a_gpu_end_sooner(second: float) -> None:
    tasks = [sharing("a", 10.0), sharing("b", 10.0, arrival=second)]
    together = simulate(tasks, Cluster.of_one_node(1))
    apart = simulate(tasks, Cluster.of_one_node(1), settings=SimulationSettings(share_gpu=False))
    # a step of both trials takes what a step of one does
    assert together.makespan_seconds == pytest.approx(second + 10.0, abs=0.3)
    assert apart.makespan_seconds == pytest.approx(20.0)
    assert (together.num_joined, apart.num_joined) == (1, 0)
    assert {segment.task_id for segment in together.segments if segment.has_ended} == {"a", "b"}
    # the GPU is held once, however many tasks are on it
    assert together.utilisation <= 1.0


def test_tasks_that_share_exit_early_die_and_come_back() -> None:
    settings = SimulationSettings(
        placement=QUICK, failures_per_gpu_hour=100.0, checkpoint_seconds=2.0, exit_shares=(0.3, 1.0)
    )
    for seed in range(8):
        tasks = [sharing(f"t{n}", 20.0 + n, num_trials=3) for n in range(5)]
        report = simulate(tasks, Cluster.of_one_node(2), settings=replace(settings, seed=seed))
        assert not report.unfinished
        assert sum(segment.has_ended for segment in report.segments) == 5
        assert report.utilisation <= 1.0 + 1e-9
