"""How many requests a second does a service answer 200 clients, how long do they wait, and does its memory stay flat?

200 clients of 20 tenants send what clients of a fine-tuning service send all day: lists of files and jobs, a job, its
events, Cohort's own lists, now and then an upload, which is read and deleted again. One client in ten is the ``openai``
package, the others speak HTTP. The service is a process of its own, on SQLite and on a PostgreSQL on the same disk. Its
resident memory is that of its process.

    python -m benchmarks.service.http_load --minutes 20    # CPU, 40 minutes; PostgreSQL's part needs its binaries
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai

from benchmarks.measure import RESULTS, print_table, write_result
from cohort.store.jobs.events import NewEvent
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.store import open_store
from tests.support.postgresql_server import PostgresServer, postgresql_binaries

NUM_TENANTS, NUM_CLIENTS, JOBS_OF_A_TENANT, EVENTS_OF_A_JOB = 20, 200, 20, 20
ROWS = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n' * 40
MEMORY_EVERY_SECONDS = 5.0
# caches and pools fill; what grows after that goes on growing
WARM_SHARE = 0.25


@dataclass
class Seen:
    """What clients and the watcher of memory saw."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    # requests on a connection that the server had just closed, sent again
    num_sent_again: int = 0
    # seconds since the start, MiB
    memory: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A project with some jobs that have ended."""

    key: str
    jobs: tuple[str, ...]


def tenants_of(place: str | Path, blobs: Path) -> list[Tenant]:
    """Make tenants with jobs in a store that no server uses yet."""
    store, found = open_store(place, blobs=blobs), []
    organisation = store.tenants.add_organisation("load", actor="benchmark")
    for number in range(NUM_TENANTS):
        project = store.tenants.add_project(organisation.id, f"tenant-{number}", actor="benchmark")
        own, jobs = store.project(project.id), []
        new = NewJob(base_model="quickstart", request={"model": "quickstart", "training_file": "file-none"})
        for _ in range(JOBS_OF_A_TENANT):
            events = [NewEvent(message=f"Step {step}/20") for step in range(EVENTS_OF_A_JOB)]
            jobs.append(own.jobs.create(new, events=events).id)
            own.jobs.cancel(jobs[-1])
        found.append(Tenant(key=store.keys.create(project.id, actor="benchmark").text, jobs=tuple(jobs)))
    store.close()
    return found


@contextmanager
def server(folder: Path, database: str | None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run ``cohort service``; yield its process and its address."""
    text = "folder: service\nname: load\nport: 0\nlimits: {requests_per_minute_of_address: 100000000}\n"
    text += "" if database is None else f"database: {database}\n"
    file = folder / "service.yaml"
    file.write_text(text + f"blobs: {folder / 'blobs'}\n")
    with (folder / "service.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cohort", "service", str(file)], stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "serving on " in line:
                yield process, line.split("serving on ")[1].strip().removesuffix("/v1")
                return
        raise RuntimeError((folder / "service.log").read_text())
    finally:
        process.terminate()
        process.wait(120)


async def http_client(tenant: Tenant, url: str, seen: Seen, until: float, chance: random.Random) -> None:
    """Send requests one after the other."""
    limits = httpx.Limits(max_connections=1)
    headers = {"authorization": f"Bearer {tenant.key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120, limits=limits) as client:

        async def send(method: str, path: str, **options: Any) -> httpx.Response:
            began = time.perf_counter()
            try:
                answer = await client.request(method, path, **options)
            except httpx.RemoteProtocolError:
                seen.num_sent_again += 1
                answer = await client.request(method, path, **options)
            seen.seconds.append(time.perf_counter() - began)
            seen.statuses[answer.status_code] += 1
            return answer

        while time.perf_counter() < until:
            job = chance.choice(tenant.jobs)
            await send("GET", f"/v1/fine_tuning/jobs/{job}")
            await send("GET", f"/v1/fine_tuning/jobs/{job}/events?limit=10")
            await send("GET", "/v1/fine_tuning/jobs?limit=10")
            await send("GET", "/v1/files?limit=10")
            await send("GET", f"/v1/cohort/tasks/{job}")
            await send("GET", "/v1/cohort/tasks?limit=10")
            if chance.random() < 0.2:
                files = {"file": ("rows.jsonl", ROWS)}
                made = (await send("POST", "/v1/files", files=files, data={"purpose": "fine-tune"})).json()
                await send("GET", f"/v1/files/{made['id']}/content")
                await send("DELETE", f"/v1/files/{made['id']}")


async def openai_client(tenant: Tenant, url: str, seen: Seen, until: float, chance: random.Random) -> None:
    """The same with the ``openai`` package."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=tenant.key, max_retries=2, timeout=120) as client:
        jobs = client.fine_tuning.jobs
        while time.perf_counter() < until:
            job = chance.choice(tenant.jobs)
            for call in (
                lambda job=job: jobs.retrieve(job),
                lambda job=job: jobs.list_events(job, limit=10),
                lambda: jobs.list(limit=10),
                lambda: client.files.list(limit=10),
            ):
                began = time.perf_counter()
                await call()
                seen.seconds.append(time.perf_counter() - began)
                seen.statuses[200] += 1


async def watch_memory(pid: int, seen: Seen, until: float) -> None:
    began = time.perf_counter()
    while time.perf_counter() < until:
        status = Path(f"/proc/{pid}/status").read_text()
        kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        seen.memory.append((time.perf_counter() - began, kib / 1024))
        await asyncio.sleep(min(MEMORY_EVERY_SECONDS, max(0.1, until - time.perf_counter())))


async def load(pid: int, url: str, tenants: list[Tenant], *, num_clients: int, seconds: float) -> Seen:
    """Send for so long, and return what was seen."""
    seen, until = Seen(), time.perf_counter() + seconds

    async def guarded(number: int) -> None:
        kind = openai_client if number % 10 == 0 else http_client
        try:
            await kind(tenants[number % len(tenants)], url, seen, until, random.Random(number))
        except Exception as error:
            # a client that fails is counted, and the others go on
            seen.failures.append(f"{type(error).__name__}: {error}"[:200])

    await asyncio.gather(watch_memory(pid, seen, until), *(guarded(number) for number in range(num_clients)))
    return seen


def slope_of(memory: list[tuple[float, float]]) -> float:
    """Return the MiB a minute by which memory grew once it was warm."""
    warm = memory[int(WARM_SHARE * len(memory)) :]
    return 60 * statistics.linear_regression(*zip(*warm, strict=True)).slope if len(warm) > 2 else 0.0


def row_of(kind: str, seen: Seen, seconds: float) -> dict[str, Any]:
    """Return the numbers of one database."""
    times, memory = sorted(seen.seconds), [mib for _, mib in seen.memory]
    return {
        "database": kind,
        "requests_per_second": round(len(times) / seconds, 1),
        "ms_median": round(1e3 * times[len(times) // 2], 1),
        "ms_99": round(1e3 * times[int(0.99 * len(times))], 1),
        "ms_most": round(1e3 * times[-1], 1),
        "requests": len(times),
        "server_errors": sum(count for status, count in seen.statuses.items() if status >= 500),
        "statuses": {str(status): count for status, count in sorted(seen.statuses.items())},
        "sent_again": seen.num_sent_again,
        "failed_clients": len(seen.failures),
        "failures": seen.failures[:5],
        "mib_after_warming": round(memory[int(WARM_SHARE * len(memory))], 1),
        "mib_in_the_middle": round(memory[len(memory) // 2], 1),
        "mib_at_the_end": round(memory[-1], 1),
        "mib_a_minute": round(slope_of(seen.memory), 3),
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, metavar="M", help="for each database")
    parser.add_argument("--clients", type=int, default=NUM_CLIENTS, metavar="N")
    parser.add_argument("--folder", type=Path, default=None, metavar="DIR", help="a folder of the disk to measure on")
    parser.add_argument("--output", type=Path, default=RESULTS / "http_load.json", metavar="FILE")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for kind in ("sqlite", "postgresql"):
        binaries = postgresql_binaries()
        if kind == "postgresql" and binaries is None:
            print("no PostgreSQL here: SQLite alone")
            continue
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            folder, cluster, url = Path(name), None, None
            # PostgreSQL runs as another user
            folder.chmod(0o755)
            if kind == "postgresql":
                assert binaries is not None
                cluster = PostgresServer(binaries, settings=("shared_buffers=128MB",), folder=folder)
                url = cluster.url(cluster.new_database())
            try:
                tenants = tenants_of(url or folder / "service", folder / "blobs")
                with server(folder, url) as (process, address):
                    seconds = 60 * arguments.minutes
                    asked = load(process.pid, address, tenants, num_clients=arguments.clients, seconds=seconds)
                    rows.append(row_of(kind, asyncio.run(asked), seconds))
            finally:
                if cluster is not None:
                    cluster.close()
        print_table(rows[-1:], columns=[key for key in rows[-1] if key not in ("statuses", "failures")])
    names = ("requests_per_second", "ms_median", "ms_99", "mib_a_minute", "server_errors")
    headline = {f"{row['database']}_{name}": row[name] for row in rows for name in names}
    headline |= {"minutes": arguments.minutes, "clients": arguments.clients, "load_average": rows[-1]["load_average"]}
    write_result(arguments.output, question=str(__doc__).partition("\n")[0], headline=headline, rows=rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
