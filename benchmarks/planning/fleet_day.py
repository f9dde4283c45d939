"""A day of a service on paper: what its tenants submit, and what each of them is entitled to."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import RESULTS

__all__ = ["DAY_SECONDS", "FleetJob", "draw_day", "entitled_seconds", "measured_kinds"]

DAY_SECONDS = 86_400.0
# four times as many jobs at two in the afternoon as at two at night
_PEAK_HOUR, _SWING = 14.0, 0.6


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """A kind of job: seconds before its first step, seconds for a training row, and how it was measured."""

    name: str
    share: float
    num_gpus: int
    start_seconds: float
    row_seconds: float
    worst_over_real: float
    source: str


@dataclass(frozen=True, kw_only=True)
class FleetJob:
    """One job: what it really takes, and what is expected of it before its trials exit early."""

    name: str
    tenant: str
    kind: str
    submitted: float
    num_gpus: int
    seconds: float
    worst_seconds: float


def _result(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def measured_kinds() -> list[JobKind]:
    """Return kinds of jobs with the lengths of committed results."""
    all_in = {row.get("what"): row for row in reversed(_result("all_in_price_8b")["rows"])}
    sweep, one = all_in["sweep, first"], all_in["PEFT, batch 1"]
    small = next(row for row in _result("whole_sweep_1b")["rows"] if row.get("what") == "sweep, cold")
    dpo = next(row for row in _result("dpo_sweep_price_1b")["rows"] if row["side"] == "sweep of 40")
    large = next(row for row in _result("several_gpus_sweep_70b")["rows"] if row["strategy"] == "adapter_parallel")
    start_1b = small["wall_s"] - small["training"]
    return [
        JobKind(
            name="sweep of 60, 8B",
            share=0.35,
            num_gpus=1,
            start_seconds=sweep["wall_s"] - sweep["training"],
            row_seconds=sweep["training"] / 320,
            worst_over_real=1 / sweep["of_grid"],
            source="all_in_price_8b",
        ),
        JobKind(
            name="one configuration, 8B",
            share=0.3,
            num_gpus=1,
            start_seconds=one["wall_s"] - one["training"],
            row_seconds=one["training"] / 320,
            worst_over_real=1.0,
            source="all_in_price_8b",
        ),
        JobKind(
            name="sweep of 60, 1B",
            share=0.2,
            num_gpus=1,
            start_seconds=start_1b,
            row_seconds=small["training"] / 320,
            worst_over_real=1 / small["of_grid"],
            source="whole_sweep_1b",
        ),
        JobKind(
            name="DPO sweep of 40, 1B",
            share=0.1,
            num_gpus=1,
            start_seconds=start_1b,
            row_seconds=dpo["seconds"] / 160,
            worst_over_real=dpo["full_seconds"] / dpo["seconds"],
            source="dpo_sweep_price_1b",
        ),
        JobKind(
            name="sweep of 60, 70B",
            share=0.05,
            num_gpus=4,
            start_seconds=120.0,
            # measured with 8 of 80 layers on two GPUs; here ten times that on four
            row_seconds=large["seconds"] * 10 / 2 / 160,
            worst_over_real=1 / (1 - large["saved_share"]),
            source="several_gpus_sweep_70b",
        ),
    ]


def draw_day(
    *, num_tenants: int, num_jobs: int, num_gpus: int, load: float, seed: int
) -> tuple[list[FleetJob], dict[str, float]]:
    """Return the jobs of a day by submission, and the weights of the tenants.

    Tenants submit like Zipf's words with exponent 0.8. Rows of a job are lognormal with sigma 1.2, their median such
    that the day's work is ``load`` of what the GPUs can do; no job takes longer than six hours.
    """
    rng = random.Random(seed)
    kinds = measured_kinds()
    tenants = [f"tenant{number:03d}" for number in range(num_tenants)]
    weights = {tenant: float(rng.choice((1, 1, 1, 2, 4))) for tenant in tenants}
    activity = [1 / (rank + 10) ** 0.8 for rank in range(num_tenants)]
    rng.shuffle(activity)
    drawn = [
        (
            _moment(rng),
            rng.choices(tenants, activity)[0],
            rng.choices(kinds, [kind.share for kind in kinds])[0],
            rng.lognormvariate(0.0, 1.2),
        )
        for _ in range(num_jobs)
    ]
    drawn.sort(key=lambda job: job[0])

    def seconds(kind: JobKind, rows: float) -> float:
        return min(kind.start_seconds + kind.row_seconds * max(rows, 50.0), 6 * 3600.0)

    def work(median: float) -> float:
        return math.fsum(kind.num_gpus * seconds(kind, median * rows) for _, _, kind, rows in drawn)

    low, high = 10.0, 1e6
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if work(middle) < load * num_gpus * DAY_SECONDS else (low, middle)
    jobs = [
        FleetJob(
            name=f"job{number:05d}",
            tenant=tenant,
            kind=kind.name,
            submitted=submitted,
            num_gpus=kind.num_gpus,
            seconds=seconds(kind, low * rows),
            worst_seconds=seconds(kind, low * rows) * kind.worst_over_real,
        )
        for number, (submitted, tenant, kind, rows) in enumerate(drawn)
    ]
    return jobs, weights


def _moment(rng: random.Random) -> float:
    while True:
        moment = rng.uniform(0, DAY_SECONDS)
        rate = 1 + _SWING * math.cos((moment / 3600 - _PEAK_HOUR) / 24 * 2 * math.pi)
        if rng.random() * (1 + _SWING) < rate:
            return moment


def entitled_seconds(
    jobs: Sequence[FleetJob], weights: dict[str, float], *, num_gpus: int, marks: Sequence[float], step: float = 30.0
) -> NDArray[np.float64]:
    """Return, by mark and tenant, GPU seconds that a division without jobs' edges would have given until then.

    At each step GPUs go to the tenants by weight; none gets more than its unfinished jobs can use, and what it leaves
    goes to the others, by weight again. Its jobs run in the order in which they came.
    """
    names = list(weights)
    place = {name: number for number, name in enumerate(names)}
    weight_T = np.array([weights[name] for name in names])
    queues: list[list[list[float]]] = [[] for _ in names]
    had_T = np.zeros(len(names))
    found, coming, now = [], 0, 0.0
    for mark in marks:
        while now < mark:
            while coming < len(jobs) and jobs[coming].submitted <= now:
                job = jobs[coming]
                queues[place[job.tenant]].append([job.num_gpus * job.seconds, job.num_gpus])
                coming += 1
            want_T = np.array([sum(min(gpus, left / step) for left, gpus in queue) for queue in queues])
            give_T = _by_weight(want_T, weight_T, float(num_gpus))
            had_T += give_T * step
            for number in np.flatnonzero(give_T):
                _serve(queues[number], float(give_T[number]), step)
            now += step
        found.append(had_T.copy())
    return np.array(found)


def _by_weight(want_T: NDArray[np.float64], weight_T: NDArray[np.float64], room: float) -> NDArray[np.float64]:
    """Return the largest-min division of ``room``: all of what is wanted, or one level of GPUs over weight."""
    if want_T.sum() <= room:
        return want_T
    levels = np.sort(want_T / weight_T)
    low, high = 0.0, float(levels[-1])
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(want_T, middle * weight_T).sum() < room else (low, middle)
    return np.minimum(want_T, low * weight_T)


def _serve(queue: list[list[float]], gpus: float, step: float) -> None:
    for job in queue:
        used = min(gpus, job[1], job[0] / step)
        job[0] -= used * step
        gpus -= used
        if gpus <= 1e-9:
            break
    queue[:] = [job for job in queue if job[0] > 1e-6]
