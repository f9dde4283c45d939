"""How do 1,000 tenants fare with 50,000 jobs a day on 1,024 GPUs, and how fast is a queue of 10,000 planned?

    python -m benchmarks.planning.fleet

The day is simulated with the planner of the task queue itself (:class:`~cohort.task_queue.replanner.Replanner`): what
comes and ends within ``--tick`` seconds is planned at once.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from benchmarks.planning.fleet_day import DAY_SECONDS, FleetJob, draw_day, entitled_seconds, measured_kinds
from benchmarks.planning.fleet_figure import draw_fleet
from cohort.scheduling.placement.cluster_events import ClusterEvent, TaskArrived, TaskEnded, TaskReestimated
from cohort.scheduling.placement.records import Cluster, TaskOption, TaskRequest
from cohort.scheduling.placement.task_order import ListPolicy
from cohort.task_queue.replanner import Replanner

FIGURE = REPOSITORY / "docs" / "figures" / "fleet-day.svg"
_MARKS = [3600.0 * hour for hour in range(1, 25)]


@dataclass(kw_only=True)
class Day:
    """What happened: starts and GPU seconds by job, and samples of the cluster."""

    started: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    busy: list[tuple[float, float, int]] = field(default_factory=list)
    replan_seconds: list[tuple[int, float]] = field(default_factory=list)


def cluster_of(num_hosts: int) -> Cluster:
    return Cluster(nodes={f"host{n:03d}": tuple(range(8 * n, 8 * n + 8)) for n in range(num_hosts)})


def request_of(job: FleetJob, weights: dict[str, float] | None) -> TaskRequest:
    return TaskRequest(
        task_id=job.name,
        options=(TaskOption(num_gpus=job.num_gpus, seconds=job.worst_seconds),),
        tenant=job.tenant if weights else "",
        weight=weights[job.tenant] if weights else 1.0,
    )


def simulate(
    jobs: Sequence[FleetJob], cluster: Cluster, *, weights: dict[str, float] | None, tick: float, until: float
) -> Day:
    """Run the queue's planner over a day; without weights it is first come, first served."""
    replanner = Replanner(cluster, policy=None if weights else ListPolicy.FIRST_COME)
    day, by_name, coming = Day(), {job.name: job for job in jobs}, 0
    # (time, job, seconds left as then expected; 0 at its end)
    due: list[tuple[float, str, float]] = []
    now = 0.0
    while now < until:
        now += tick
        events: list[ClusterEvent] = []
        while due and due[0][0] <= now:
            at, name, left = heapq.heappop(due)
            if left:
                events.append(TaskReestimated(at_seconds=now, task_id=name, remaining_seconds=left))
            else:
                day.ended[name] = at
                events.append(TaskEnded(at_seconds=now, task_id=name))
        while coming < len(jobs) and jobs[coming].submitted <= now:
            events.append(TaskArrived(at_seconds=now, request=request_of(jobs[coming], weights)))
            coming += 1
        if events:
            begun = time.process_time()
            changes = replanner.take(events, saved_shares={})
            day.replan_seconds.append((len(replanner.state.waiting), time.process_time() - begun))
            for task in changes.started:
                job = by_name[task.request.task_id]
                day.started[job.name] = now
                heapq.heappush(due, (now + job.seconds, job.name, 0.0))
                # its trials have exited early by the middle: from there on its end is known
                if job.worst_seconds > 1.01 * job.seconds:
                    heapq.heappush(due, (now + job.seconds / 2, job.name, job.seconds / 2))
        held = sum(len(task.gpu_ids) for task in replanner.state.active)
        day.busy.append((now, held / cluster.num_gpus, len(replanner.state.waiting)))
    return day


def had_seconds(jobs: Sequence[FleetJob], day: Day, tenants: Sequence[str]) -> NDArray[np.float64]:
    """Return, by mark and tenant, the GPU seconds that its jobs had until then."""
    place = {name: number for number, name in enumerate(tenants)}
    had_MT = np.zeros((len(_MARKS), len(tenants)))
    for job in jobs:
        if (start := day.started.get(job.name)) is not None:
            spent = np.clip(np.array(_MARKS) - start, 0.0, job.seconds)
            had_MT[:, place[job.tenant]] += job.num_gpus * spent
    return had_MT


def jain(shares: NDArray[np.float64]) -> float:
    """Return Jain's index: 1 where all have the same."""
    return float(shares.sum() ** 2 / (len(shares) * (shares**2).sum()))


def waits(jobs: Sequence[FleetJob], day: Day, *, until: float) -> NDArray[np.float64]:
    """Return how long each job waited, those that wait still until now."""
    return np.array([day.started.get(job.name, until) - job.submitted for job in jobs])


def row_of(
    name: str, jobs: Sequence[FleetJob], day: Day, entitled_MT: NDArray[np.float64], tenants: Sequence[str]
) -> dict[str, Any]:
    had_MT = had_seconds(jobs, day, tenants)
    waited = waits(jobs, day, until=_MARKS[-1])
    # who asks for little: half of all tenants, by what they submitted
    asked = dict.fromkeys(tenants, 0.0)
    for job in jobs:
        asked[job.tenant] += job.num_gpus * job.seconds
    middle = statistics.median(asked.values())
    modest = np.array([asked[job.tenant] <= middle for job in jobs])
    # when most wait, and at the day's end
    peak = max(range(len(_MARKS)), key=lambda mark: _waiting_at(day, _MARKS[mark]))
    row: dict[str, Any] = {"policy": name, "jobs_started": len(day.started)}
    for label, mark in (("peak", peak), ("day", len(_MARKS) - 1)):
        counts = entitled_MT[mark] > 0
        row[f"jain_{label}"] = jain(had_MT[mark][counts] / entitled_MT[mark][counts])
    row["peak_hour"] = _MARKS[peak] / 3600
    row["utilisation"] = statistics.fmean(share for _, share, _ in day.busy)
    loaded = [share for _, share, waiting in day.busy if waiting >= 100]
    row["utilisation_while_jobs_wait"] = statistics.fmean(loaded) if loaded else float("nan")
    row["most_waiting"] = max(waiting for _, _, waiting in day.busy)
    for label, chosen in (("", waited), ("_modest", waited[modest])):
        row[f"wait{label}_median_s"] = float(np.median(chosen))
        row[f"wait{label}_p95_s"] = float(np.quantile(chosen, 0.95))
        row[f"wait{label}_p99_s"] = float(np.quantile(chosen, 0.99))
    row["replan_median_s"] = statistics.median(seconds for _, seconds in day.replan_seconds)
    row["replan_most_s"] = max(seconds for _, seconds in day.replan_seconds)
    return row


def _waiting_at(day: Day, mark: float) -> int:
    return max((waiting for at, _, waiting in day.busy if mark - 3600 < at <= mark), default=0)


def ten_thousand(jobs: Sequence[FleetJob], weights: dict[str, float], cluster: Cluster) -> list[dict[str, Any]]:
    """Time a replan with 10,000 waiting tasks: with tenants, and the shortest plan of one person's queue."""
    rows = []
    for name, own in (("fair shares", weights), ("shortest", None)):
        replanner = Replanner(cluster, policy=None)
        *chosen, one, two, three, four, five = random.Random(0).sample(list(jobs), 11_405)
        events: list[ClusterEvent] = [TaskArrived(at_seconds=0.0, request=request_of(job, own)) for job in chosen]
        replanner.take(events, saved_shares={})
        seconds = []
        for number, job in enumerate((one, two, three, four, five), start=1):
            ended = TaskEnded(at_seconds=60.0 * number, task_id=replanner.state.active[7 * number].request.task_id)
            came = TaskArrived(at_seconds=60.0 * number, request=request_of(job, own))
            begun = time.process_time()
            changes = replanner.take([ended, came], saved_shares={})
            seconds.append(time.process_time() - begun)
        assert changes.plan is not None
        plan = changes.plan
        rows.append(
            {
                "plan": name,
                "waiting": len(replanner.state.waiting),
                "gpus": cluster.num_gpus,
                "seconds": statistics.median(seconds),
                "slowest_seconds": max(seconds),
                "over_bound": plan.gap,
                "policy": plan.policy,
            }
        )
    return rows


def main() -> None:
    """Simulate, measure, print, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--hosts", type=int, default=128)
    parser.add_argument("--load", type=float, default=0.85, help="work of the day over what the GPUs can do in it")
    parser.add_argument("--tick", type=float, default=60.0, help="simulated seconds between two plans")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "fleet.json")
    arguments = parser.parse_args()
    cluster = cluster_of(arguments.hosts)
    jobs, weights = draw_day(
        num_tenants=arguments.tenants,
        num_jobs=arguments.jobs,
        num_gpus=cluster.num_gpus,
        load=arguments.load,
        seed=arguments.seed,
    )
    plans = ten_thousand(jobs, weights, cluster) if len(jobs) > 20_000 else []
    print_table(plans, columns=list(plans[0]) if plans else [])
    rows = whole_day(jobs, weights, cluster, tick=arguments.tick)
    print_table(rows, columns=list(rows[0]))
    write_result(
        arguments.out,
        question="How do 1,000 tenants with 50,000 jobs a day fare on 1,024 GPUs; how fast is a long queue planned?",
        headline=headline_of(plans, rows),
        rows=[*plans, *rows],
        notes={
            "tenants": arguments.tenants,
            "jobs": arguments.jobs,
            "hosts": arguments.hosts,
            "gpus_of_a_host": 8,
            "load": arguments.load,
            "tick_seconds": arguments.tick,
            "weights": "1 for three of five tenants, 2 and 4 for one of five each",
            "kinds": [vars(kind) for kind in measured_kinds()],
            "entitled": "what a division by weight without jobs' edges gives, no tenant more than its jobs can use",
            "seconds_of_replans": "of one core: other programs ran on the machine",
            "modest": "tenants that submitted no more than the median tenant",
        },
    )


def whole_day(
    jobs: Sequence[FleetJob], weights: dict[str, float], cluster: Cluster, *, tick: float
) -> list[dict[str, Any]]:
    """Simulate the day by fair shares and first come, first served, and draw both."""
    entitled_MT = entitled_seconds(jobs, weights, num_gpus=cluster.num_gpus, marks=_MARKS)
    rows, days = [], {}
    for name, own in (("fair shares", weights), ("first come", None)):
        begun = time.perf_counter()
        days[name] = simulate(jobs, cluster, weights=own, tick=tick, until=DAY_SECONDS)
        rows.append(row_of(name, jobs, days[name], entitled_MT, list(weights)))
        print(f"{name}: simulated in {time.perf_counter() - begun:.0f} s", flush=True)
    peak = round(rows[0]["peak_hour"]) - 1
    counts = entitled_MT[peak] > 0
    ratios = {
        name: sorted(had_seconds(jobs, day, list(weights))[peak][counts] / entitled_MT[peak][counts])
        for name, day in days.items()
    }
    draw_fleet({name: day.busy for name, day in days.items()}, ratios, path=FIGURE, hour=rows[0]["peak_hour"])
    return rows


def headline_of(plans: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    fair, first = rows
    found = {
        "fleet_jain_of_shares_over_entitled_day": fair["jain_day"],
        "fleet_jain_of_shares_over_entitled_peak": fair["jain_peak"],
        "fleet_jain_first_come_day": first["jain_day"],
        "fleet_jain_first_come_peak": first["jain_peak"],
        "fleet_utilisation_while_jobs_wait": fair["utilisation_while_jobs_wait"],
        "fleet_wait_median_s": fair["wait_median_s"],
        "fleet_wait_p95_s": fair["wait_p95_s"],
        "fleet_wait_p99_s": fair["wait_p99_s"],
        "fleet_wait_modest_p99_s": fair["wait_modest_p99_s"],
        "fleet_wait_modest_p99_first_come_s": first["wait_modest_p99_s"],
    }
    if plans:
        found["replan_10000_waiting_seconds"] = max(row["slowest_seconds"] for row in plans)
        found["replan_10000_waiting_over_bound"] = max(row["over_bound"] for row in plans)
    return found


if __name__ == "__main__":
    main()
