"""One history of a simulated service, from its seed: ``python -m tests.support.service_simulation.history SEED``."""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import select

from cohort.store.blobs.blob_folder import open_blobs
from cohort.store.database import open_database
from cohort.store.enums import JobStatus
from cohort.store.jobs.claims import Claim
from cohort.store.migrating import migrate
from cohort.store.random_names import SeededSource
from cohort.store.records import Job
from cohort.store.store import Store
from cohort.store.tables import job_events, jobs
from cohort.store.tenants.tenants import Quotas

from .clients import Client
from .invariants import Invariants
from .nodes import TOKENS_A_STEP, Node, steps_of
from .world import FaultRates, World, WorldClock

_STORM_SECONDS, _CALM_SECONDS = 160.0, 1800.0


@cache
def _empty_database() -> bytes:
    """Return a migrated database: a migration takes longer than a history."""
    database = open_database("sqlite:///:memory:")
    migrate(database)
    with database.engine.connect() as connection:
        content = connection.connection.driver_connection
        assert isinstance(content, sqlite3.Connection)
        found = content.serialize()
    database.close()
    return found


MakeNodes = Callable[[World, Store, Invariants, Path], Sequence[object]]


def simple_nodes(world: World, store: Store, invariants: Invariants, _: Path) -> Sequence[object]:
    """Return nodes that use the store as a runner must."""
    checkpoints: dict[str, int] = {}
    return [
        Node(world, store, invariants, name=f"node{number}", checkpoints=checkpoints)
        for number in range(world.chance.randint(1, 3))
    ]


def play(seed: int, folder: Path, *, rates: FaultRates | None = None, make_nodes: MakeNodes = simple_nodes) -> str:
    """Play a history and return its log.

    Args:
        make_nodes: Puts nodes into the world, which run jobs; they keep files in the folder.

    Raises:
        BrokenInvariantError: the service did what it must never do.
    """
    world = World(seed, rates=rates)
    database = open_database("sqlite:///:memory:", clock=WorldClock(world), faults=world.fault)
    with database.engine.connect() as connection:
        content = connection.connection.driver_connection
        assert isinstance(content, sqlite3.Connection)
        content.deserialize(_empty_database())
    store = Store(database, open_blobs(folder / "blobs"), source=SeededSource(seed))
    invariants = Invariants(world, database)
    was_calm, world.is_calm = world.is_calm, True
    organisation = store.tenants.add_organisation("all", actor="admin")
    projects = [
        store.tenants.add_project(
            organisation.id, f"p{number}", actor="admin", weight=weight, quotas=Quotas(max_open_jobs=quota)
        )
        for number, (weight, quota) in enumerate(((1.0, None), (1.0, 3), (2.0, 6), (4.0, None)))
    ]
    world.is_calm, world.on_commit = was_calm, invariants.look
    clients = [
        Client(world, store, invariants, project.id, num_jobs=world.chance.randint(2, 9)) for project in projects
    ]
    for client in clients:
        client.others = [other for other in clients if other is not client]
    _watch_writers(store, invariants)
    # they live in the world: it calls them
    nodes = make_nodes(world, store, invariants, folder)
    assert nodes, "a service has nodes"
    world.run(until=_STORM_SECONDS)
    world.calm()
    while world.now < _STORM_SECONDS + _CALM_SECONDS:
        world.run(until=world.now + 60.0)
        for client in clients:
            client.resume_all()
        if not invariants.num_open and all(client.is_answered for client in clients):
            break
    _look_at_the_end(world, invariants, clients)
    with database.read() as connection:
        for row in connection.execute(select(jobs).order_by(jobs.c.position)):
            world.lines.append(repr(tuple(row)))
        for row in connection.execute(select(job_events).order_by(job_events.c.job_id, job_events.c.number)):
            world.lines.append(repr(tuple(row)))
    store.close()
    return "\n".join(world.lines) + "\n"


def _watch_writers(store: Store, invariants: Invariants) -> None:
    update = store.claims.update

    def watched(claim: Claim, **changes: Any) -> Job:
        invariants.writing = (claim.job_id, claim.token)
        try:
            return update(claim, **changes)
        finally:
            invariants.writing = None

    store.claims.update = watched  # type: ignore[method-assign]


def _look_at_the_end(world: World, invariants: Invariants, clients: list[Client]) -> None:
    invariants.look()
    for client in clients:
        invariants.require(client.is_answered, "a client that asks again and again has no answer")
        for job_id in client.accepted.values():
            invariants.require(job_id in invariants.seen, f"job {job_id} was accepted and is not there")
        own = sum(job.project == client.project_id for job in invariants.seen.values())
        invariants.require(own == len(client.accepted), "a job that was asked for once is there twice")
    ended = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)
    for job_id, job in invariants.seen.items():
        invariants.require(job.status in ended, f"job {job_id} is {job.status} for ever")
    invariants.look_at_results({job_id: steps_of(job_id) * TOKENS_A_STEP for job_id in invariants.seen})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.stdout.write(play(int(sys.argv[1]), Path(place)))
