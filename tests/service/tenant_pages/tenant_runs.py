"""Two tenants of a service with runs: one here, one that waits, one on another server; and the pages over them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from starlette.testclient import TestClient

from cohort.runs.directory import RunDirectory
from cohort.runs.fact_groups import TaskFacts
from cohort.store.enums import JobKind, JobStatus, KeyScope
from cohort.store.jobs.events import NewEvent
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.records import Job
from cohort.store.store import Store, open_store
from cohort.store.tenants.keys import NewKey
from cohort.tasks.loading import task_from_mapping
from tests.runs.small_run import write_small_run
from tests.service.admin.tenant_store import pages_of

__all__ = ["API", "SCRIPT", "TenantRuns", "page_client", "tenant_runs"]

API = "/dashboard/api"
SCRIPT = "<img src=x onerror=alert(1)>"


@dataclass(frozen=True, kw_only=True)
class TenantRuns:
    """The store, and what is in it.

    Attributes:
        nodes: The folder of the nodes that the pages see.
        keys: By what they are for: ``acme`` and ``zen`` open tasks of their projects, ``admin`` has the scope admin
            alone, in a project of its own.
        jobs: By name: ``here`` trains on this server, ``waits`` has not begun, ``far`` trains on gpu-2; all of acme.
            ``zen`` is zen's, and is here.
    """

    store: Store
    nodes: Path
    keys: Mapping[str, NewKey]
    jobs: Mapping[str, Job]

    def run(self, name: str) -> RunDirectory:
        return RunDirectory(self.nodes / "node" / "runs" / self.jobs[name].id)


def tenant_runs(folder: Path) -> TenantRuns:
    """Write the store and the runs."""
    store = open_store(folder / "service")
    nodes = folder / "service" / "nodes"
    keys = {}
    for name, scopes in (
        ("acme", {KeyScope.TASKS, KeyScope.FINE_TUNING}),
        ("zen", {KeyScope.TASKS}),
        ("admin", {KeyScope.ADMIN}),
    ):
        organisation = store.tenants.add_organisation(name, actor="test")
        project = store.tenants.add_project(organisation.id, "research", actor="test")
        keys[name] = store.keys.create(project.id, actor="test", scopes=frozenset(scopes))
    acme, zen = keys["acme"].key.project_id, keys["zen"].key.project_id
    jobs = {
        "here": _job(store, acme, suffix="cafe", node="node"),
        "waits": _job(store, acme, suffix="later", node=None),
        "far": _job(store, acme, suffix=SCRIPT, node="gpu-2"),
        "zen": _job(store, zen, suffix="secret-of-zen", node="node"),
    }
    found = TenantRuns(store=store, nodes=nodes, keys=keys, jobs=jobs)
    for name in ("here", "zen"):
        _write_run(found.run(name), folder)
    return found


def page_client(tenants: TenantRuns, who: str = "", *, can_change: bool = True) -> TestClient:
    """Return a browser, signed in with the key of that name; without a name, not signed in."""
    app = pages_of(tenants.store, nodes=tenants.nodes, can_change=can_change)
    client = TestClient(app, base_url="http://127.0.0.1:8000")
    if who:
        opened = client.post(f"{API}/session", json={"key": tenants.keys[who].text})
        assert opened.status_code == 200, opened.text
        client.headers["x-csrf-token"] = opened.json()["csrf"]
    return client


def _job(store: Store, project_id: str, *, suffix: str, node: str | None) -> Job:
    new = NewJob(base_model="base", request={}, kind=JobKind.TASK, suffix=suffix)
    job = store.project(project_id).jobs.create(new, events=[NewEvent(message=f"Created {suffix}")])
    if node is None:
        return job
    claimed = store.claims.claim(job.id, node, seconds=3600)
    assert claimed is not None
    place = f"{node}/runs/{job.id}"
    store.claims.update(claimed[0], status=JobStatus.QUEUED, run_directory=place)
    claimed = store.claims.claim(job.id, node, seconds=3600)
    assert claimed is not None
    told = [NewEvent(message="Trial 1, step 1/4: validation loss=1.25")]
    return store.claims.update(claimed[0], status=JobStatus.RUNNING, run_directory=place, events=told)


def _write_run(directory: RunDirectory, folder: Path) -> None:
    (folder / "train.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (folder / "model").mkdir(exist_ok=True)
    data = {
        "model_name_or_path": "model",
        "dataset": {"train": "train.jsonl"},
        "search": {"space": {"learning_rate": [1e-5, 1e-2], "r": [8, 24]}},
    }
    task = task_from_mapping(data, base_directory=folder)
    _, store, _ = write_small_run(directory.root)
    store.set_facts(task=TaskFacts(document=task.model_dump(mode="json", by_alias=True)))
    store.close()
    # a run of plain hyperparameters: a list is none that can be searched
    parameters = json.dumps({"learning_rate": 1e-5, "r": 24, "lora_alpha": 48, "batch_size": 1})
    with closing(sqlite3.connect(directory.database)) as connection, connection:
        connection.execute("UPDATE trials SET parameters = ?", (parameters,))
