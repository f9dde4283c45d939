"""Shares of tenants on one base, on a simulated clock: seats, room and turns together, as a session uses them."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pytest

from cohort.core.clock import ManualClock
from cohort.engine.resident.seats import SeatedTask, next_seat
from cohort.engine.turns.base_turns import BaseTurns
from cohort.engine.turns.step_turns import ReadyStep
from cohort.engine.turns.sweep_turns import SweepTurns
from cohort.scheduling.admission import Capacity, Request, admit
from cohort.scheduling.shares.turns import TurnTaker

ROOM = Capacity(rank_rows=256, num_slots=16, tokens_per_step=2048)
SEATS = 16


@dataclass
class Job:
    name: str
    tenant: str
    # by trial: steps that are left, and tokens of one
    left: dict[int, int]
    tokens: int


@dataclass
class SimulatedBase:
    """A base whose passes take a second and a millisecond a token on a clock of its own."""

    weights: dict[str, float]
    waiting: list[Job]
    room: Capacity = ROOM
    clock: ManualClock = field(default_factory=ManualClock)
    seated: list[Job] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    passes: list[tuple[str, ...]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __post_init__(self) -> None:
        taker = TurnTaker(self.weights)
        self.turns = SweepTurns(BaseTurns(taker, clock=self.clock.monotonic), fill_tokens=256)

    def add(self, job: Job) -> None:
        self.waiting.append(job)

    def step(self) -> None:
        """Do what happens up to the end of the next pass."""
        self._seat()
        owners = {key: job for job in self.seated for key in job.left}
        self._admit(owners)
        ready = [ReadyStep(key=key, tenant=owners[key].tenant, tokens=owners[key].tokens) for key in self.resident]
        with self.turns.step(ready) as keys:
            tokens = Counter[str]()
            for key in keys:
                tokens[owners[key].tenant] += owners[key].tokens
            seconds = 0.04 + 5e-5 * tokens.total()
            self.clock.advance(seconds)
        for tenant, own in tokens.items():
            self.seconds[tenant] += seconds * own / tokens.total()
        self.passes.append(tuple(sorted(tokens)))
        for key in keys:
            owners[key].left[key] -= 1
            if not owners[key].left[key]:
                del owners[key].left[key]
                self.resident.remove(key)
        self.seated = [job for job in self.seated if job.left]

    def _seat(self) -> None:
        by_name = {job.name: job for job in (*self.waiting, *self.seated)}

        def seats(jobs: list[Job]) -> list[SeatedTask]:
            return [SeatedTask(name=job.name, tenant=job.tenant) for job in jobs]

        while change := next_seat(
            seats(self.waiting), seats(self.seated), num_seats=SEATS, weight=self.weights.__getitem__
        ):
            if change.parks is not None:
                parked = by_name[change.parks]
                self.seated.remove(parked)
                self.waiting.insert(0, parked)
                self.resident = [key for key in self.resident if key not in parked.left]
            self.waiting.remove(by_name[change.begins])
            self.seated.append(by_name[change.begins])

    def _admit(self, owners: dict[int, Job]) -> None:
        requests = {
            key: Request(trial_id=key, r=16, batch_size=1, mean_length=job.tokens, arrival=self.seated.index(job))
            for key, job in owners.items()
        }
        inside = frozenset(self.resident)
        together = [
            *(requests[key] for key in self.resident),
            *(r for r in requests.values() if r.trial_id not in inside),
        ]
        tenants = {key: job.tenant for key, job in owners.items()}
        found = self.turns.arrange(together, tenants=tenants, residents=inside, capacity=self.room)
        admission = admit(found, found[: len(inside)], self.room)
        self.resident = [key for key in self.resident if key not in admission.evicted] + [*admission.admitted]


def jobs(count: int, tenant: str, *, seed: int, first: int) -> list[Job]:
    draws = random.Random(seed)
    return [
        Job(
            name=f"{tenant}-{number}",
            tenant=tenant,
            left={first + 10 * number + trial: draws.randint(4, 20) for trial in range(draws.randint(1, 4))},
            tokens=draws.randint(30, 250),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("weights", [(4.0, 3.0, 2.0, 1.0), (1.0, 1.0, 1.0, 1.0), (16.0, 1.0, 1.0, 2.0)])
def test_shares_of_200_jobs_are_within_2_percent_of_the_weights(weights: tuple[float, ...]) -> None:
    names = ("ants", "bees", "cats", "dogs")
    base = SimulatedBase(dict(zip(names, weights, strict=True)), [])
    for place, tenant in enumerate(names):
        for job in jobs(50, tenant, seed=place, first=10_000 * place):
            base.add(job)
    # for as long as every tenant has jobs that wait: then what is left is lent
    while {job.tenant for job in base.waiting} == set(names) or not base.passes:
        base.step()
    assert len(base.passes) > 100
    for tenant, weight in zip(names, weights, strict=True):
        assert base.seconds[tenant] / sum(base.seconds.values()) == pytest.approx(weight / sum(weights), rel=0.02), (
            tenant
        )
    while base.seated or base.waiting:
        base.step()


def test_shares_that_are_idle_are_lent_and_taken_back() -> None:
    base = SimulatedBase({"busy": 1.0, "rare": 9.0}, jobs(20, "busy", seed=1, first=0))
    for _ in range(50):
        base.step()
    assert base.seconds["busy"] == pytest.approx(base.clock.monotonic())
    base.add(jobs(1, "rare", seed=2, first=90_000)[0])
    base.step()
    assert base.passes[-1] == ("rare",)


@pytest.mark.parametrize("num_jobs", [1, 200])
def test_a_flood_delays_the_next_pass_of_another_by_one_pass(num_jobs: int) -> None:
    flood = jobs(num_jobs, "flood", seed=3, first=0)
    base = SimulatedBase({"flood": 1.0, "other": 1.0}, flood)
    for _ in range(5 if num_jobs == 1 else 40):
        base.step()
    # it comes while a pass runs, which is that one pass
    base.add(jobs(1, "other", seed=4, first=90_000)[0])
    num_before = len(base.passes)
    base.step()
    assert "other" in base.passes[num_before]
    # and from then on half of the passes are its own
    while any(job.tenant == "other" for job in base.seated):
        base.step()
    own = ["other" in each for each in base.passes[num_before:]]
    longest = max(map(len, "".join("x" if each else " " for each in own[::-1]).strip().split("x")), default=0)
    # rows of the flood are longer than its own
    assert longest <= 8


def test_tenants_that_outnumber_the_slots_have_their_shares() -> None:
    """A tenant without room is no tenant without work: what it is behind by brings it in."""
    weights = {"ants": 4.0, "bees": 3.0, "cats": 2.0, "dogs": 1.0}
    long = [Job(name=name, tenant=name, left={place: 100_000}, tokens=200) for place, name in enumerate(weights)]
    base = SimulatedBase(weights, long, room=Capacity(rank_rows=16, num_slots=1, tokens_per_step=2048))
    for _ in range(8000):
        base.step()
    for tenant, weight in weights.items():
        assert base.seconds[tenant] / sum(base.seconds.values()) == pytest.approx(weight / 10, rel=0.02), tenant
