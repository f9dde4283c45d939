"""How many jobs does a service accept in a second, and how long do lists take with 100,000 jobs in its database?

A job is accepted when it is on the disk: its row, its metadata and its first event in one transaction. Lists are pages
of 20, the first, one in the middle of the table, and one by metadata. SQLite is in a folder of the disk; PostgreSQL is
a cluster of its own on the same disk, with fsync, asked over a unix socket.

    python -m benchmarks.service.stored_jobs    # CPU, five minutes; PostgreSQL's part needs its binaries
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from benchmarks.measure import RESULTS, print_table, write_result
from cohort.store.enums import EventLevel, JobKind, JobStatus
from cohort.store.jobs.events import NewEvent
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.pages import Order
from cohort.store.store import ProjectStore, Store, open_store
from cohort.store.tables import job_events, job_metadata, jobs
from tests.support.postgresql_server import PostgresServer, postgresql_binaries

NUM_PROJECTS = 10
NUM_TEAMS = 50
NUM_OPEN = 1000
REQUEST = {"model": "base", "training_file": "file-1", "method": {"type": "supervised"}}


def main() -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000, metavar="N", help="jobs in the database")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="how long jobs are accepted")
    parser.add_argument("--repeats", type=int, default=100, metavar="N", help="times a list is asked for")
    parser.add_argument("--folder", type=Path, default=None, metavar="DIR", help="a folder of the disk to measure on")
    parser.add_argument("--output", type=Path, default=RESULTS / "stored_jobs.json", metavar="FILE")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    headline: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        # PostgreSQL runs as another user
        folder.chmod(0o755)
        for kind in ("sqlite", "postgresql"):
            server = None
            place = str(folder / "service")
            if kind == "postgresql":
                binaries = postgresql_binaries()
                if binaries is None:
                    print("no PostgreSQL here: SQLite alone")
                    continue
                server = PostgresServer(binaries, settings=("shared_buffers=128MB",), folder=folder)
                place = server.url(server.new_database())
            store = open_store(place, blobs=folder / "blobs")
            try:
                found = _measure(store, arguments)
            finally:
                store.close()
                if server is not None:
                    server.close()
            rows += [{"database": kind, **row} for row in found]
            headline |= {f"{kind}_{row['headline']}": row["median"] for row in found if row["headline"]}
    # above the number of cores, processes wait for others
    headline["load_average"] = round(os.getloadavg()[0], 1)
    print_table(rows, columns=["database", "what", "median", "least", "most"])
    write_result(arguments.output, question=str(__doc__).partition("\n")[0], headline=headline, rows=rows)
    return 0


def _measure(store: Store, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    organisation = store.tenants.add_organisation("acme", actor="benchmark")
    projects = [
        store.tenants.add_project(organisation.id, f"project-{number}", actor="benchmark").id
        for number in range(NUM_PROJECTS)
    ]
    # all of one project, the worst case for its lists; open jobs of the others compete for runners
    owner = projects[0]
    _fill(store, owner, num_jobs=arguments.jobs)
    own = store.project(owner)
    rows = [_times(what, name, ask, arguments.repeats) for what, name, ask in _lists(store, own, arguments.jobs)]
    for num_clients in (1, 8):
        rates = [_accepted(store, projects, num_clients, arguments.seconds / 5) for _ in range(5)]
        name = "service_jobs_per_second" if num_clients == 8 else "one_client_jobs_per_second"
        rows.append(_row(f"jobs accepted a second, {num_clients} clients", name, rates))
    rates = [_claimed(store, arguments.seconds / 5) for _ in range(5)]
    rows.append(_row("jobs claimed and ended a second, one runner", "claims_per_second", rates))
    return rows


def _lists(store: Store, own: ProjectStore, num_jobs: int) -> list[tuple[str, str, Callable[[], object]]]:
    deep, newest, team = f"ftjob-{num_jobs // 2}", f"ftjob-{num_jobs - 1}", {"team": "7"}
    return [
        ("ms of the first page", "first_page_ms", own.jobs.list),
        ("ms of a page in the middle", "deep_page_ms", lambda: own.jobs.list(after=deep)),
        ("ms of a page in the middle, oldest first", "", lambda: own.jobs.list(after=deep, order=Order.ASC)),
        ("ms of a page by metadata", "metadata_page_ms", lambda: own.jobs.list(metadata=team)),
        ("ms of a page by metadata, in the middle", "", lambda: own.jobs.list(metadata=team, after=deep)),
        ("ms of a page by metadata that no job has", "", lambda: own.jobs.list(metadata={"team": "none"})),
        ("ms of a page of jobs without metadata", "", lambda: own.jobs.list(without_metadata=True)),
        ("ms of one job", "", lambda: own.jobs.get(deep)),
        ("ms of a page of a job's events", "", lambda: own.jobs.events(newest)),
        ("ms of what waits, by project and base model", "waiting_ms", store.claims.waiting),
    ]


def _fill(store: Store, project_id: str, *, num_jobs: int) -> None:
    """Insert jobs in bulk, most of them ended: what is measured is reading them."""
    for first in range(0, num_jobs, 5000):
        numbers = range(first, min(first + 5000, num_jobs))
        with store.database.write() as connection:
            connection.execute(insert(jobs), [_job(number, project_id, num_jobs) for number in numbers])
            connection.execute(insert(job_events), [_event(number, project_id) for number in numbers])
            connection.execute(
                insert(job_metadata),
                [
                    {
                        "job_id": f"ftjob-{number}",
                        "project_id": project_id,
                        "position": number + 1,
                        "key": "team",
                        "value": str(number % NUM_TEAMS),
                    }
                    for number in numbers
                    if number % 2
                ],
            )
    with store.database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE")
        connection.commit()


def _job(number: int, project_id: str, num_jobs: int) -> dict[str, Any]:
    is_open = number >= num_jobs - NUM_OPEN
    return {
        "id": f"ftjob-{number}",
        "project_id": project_id,
        "kind": JobKind.FINE_TUNING,
        "status": JobStatus.QUEUED if is_open else JobStatus.SUCCEEDED,
        "base_model": "base",
        "seed": number,
        "request": REQUEST,
        "hyperparameters": {"n_epochs": 3},
        "metadata": {"team": str(number % NUM_TEAMS)} if number % 2 else None,
        "has_metadata": bool(number % 2),
        "result_files": [],
        "created_at": float(number),
        "changed_at": float(number),
        "num_events": 1,
        "lease_token": 0,
    }


def _event(number: int, project_id: str) -> dict[str, Any]:
    return {
        "job_id": f"ftjob-{number}",
        "number": 1,
        "id": f"ftevent-{number}",
        "project_id": project_id,
        "created_at": float(number),
        "level": EventLevel.INFO,
        "type": "message",
        "message": "Created.",
    }


def _times(what: str, name: str, ask: Callable[[], object], repeats: int) -> dict[str, Any]:
    ask()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        ask()
        taken.append((time.perf_counter() - start) * 1e3)
    return _row(what, name, taken)


def _row(what: str, name: str, values: list[float]) -> dict[str, Any]:
    return {
        "what": what,
        "headline": name,
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
    }


def _accepted(store: Store, projects: list[str], num_clients: int, seconds: float) -> float:
    """Return how many jobs a second ``num_clients`` threads had accepted."""
    new = NewJob(base_model="base", request=REQUEST, status=JobStatus.QUEUED, metadata={"team": "1"})
    start = time.perf_counter()

    def send(client: int) -> int:
        own, count = store.project(projects[client % len(projects)]), 0
        while time.perf_counter() - start < seconds:
            own.jobs.create(new, events=[NewEvent(message="Created.")])
            count += 1
        return count

    with ThreadPoolExecutor(num_clients) as threads:
        total = sum(threads.map(send, range(num_clients)))
    return total / (time.perf_counter() - start)


def _claimed(store: Store, seconds: float) -> float:
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        found = store.claims.claim_next("runner", seconds=60)
        assert found is not None
        store.claims.update(found[0], status=JobStatus.RUNNING)
        store.claims.update(found[0], status=JobStatus.SUCCEEDED, events=[NewEvent(message="Done.")])
        count += 1
    return count / (time.perf_counter() - start)


if __name__ == "__main__":
    raise SystemExit(main())
