"""Run directories go when their time is over, and never those of a job that is open."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from cohort.core.clock import ManualClock
from cohort.service.jobs.housekeeping.housekeeper import Housekeeper
from cohort.service.jobs.housekeeping.run_retention import remove_old_runs
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.retention import Retention
from cohort.store.store import open_store

DAY = 86400.0


def test_runs_of_a_removed_project_go_whatever_is_kept(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path / "service", clock=clock)
    organisation = store.tenants.add_organisation("acme", actor="test")
    names = {}
    for project in ("stays", "goes"):
        own = store.project(store.tenants.add_project(organisation.id, project, actor="test").id)
        names[project] = own.jobs.create(NewJob(base_model="b", request={})).id
        (tmp_path / "runs" / names[project]).mkdir(parents=True)
    store.tenants.remove_project(own.project_id, actor="test")
    sweep = partial(remove_old_runs, store, runs=tmp_path / "runs", queue=tmp_path / "queue", seconds=None)
    # its node may still be saving the state of its job
    assert sweep() == 0
    clock.advance(3600)
    assert sweep() == 1
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [names["stays"]]
    store.close()


def test_runs_of_ended_and_forgotten_jobs_go(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path / "service", clock=clock)
    organisation = store.tenants.add_organisation("acme", actor="test")
    own = store.project(store.tenants.add_project(organisation.id, "default", actor="test").id)
    runs, queue = tmp_path / "runs", tmp_path / "queue"
    queue.mkdir()

    def run_of(name: str) -> Path:
        (runs / name / "trials").mkdir(parents=True)
        (runs / name / "run.db").write_text("x")
        (queue / name).symlink_to(runs / name, target_is_directory=True)
        return runs / name

    new = NewJob(base_model="b", request={})
    ended, is_open, recent = (own.jobs.create(new).id for _ in range(3))
    directories = [run_of(name) for name in (ended, is_open, recent, "ftjob-forgotten", "ftjob-strange")]
    own.jobs.cancel(ended)
    clock.advance(9 * DAY)
    own.jobs.cancel(recent)
    # of one that the database does not know, the files say how old it is
    long_ago = time.time() - 9 * DAY
    for path in (*directories[3].iterdir(), directories[3]):
        os.utime(path, (long_ago, long_ago))
    (runs / ".removed-killed").mkdir()
    # a link to nowhere within, and one that cannot be put out of sight, keep none of the others
    (directories[3] / "dangling").symlink_to(tmp_path / "gone")
    os.utime(directories[3] / "dangling", (long_ago, long_ago), follow_symlinks=False)
    os.utime(directories[3], (long_ago, long_ago))
    strange = run_of("ftjob-0-first")
    for path in (*strange.iterdir(), strange):
        os.utime(path, (long_ago, long_ago))
    (runs / ".removed-ftjob-0-first").write_text("a file in the way")

    assert remove_old_runs(store, runs=tmp_path / "nowhere", queue=queue, seconds=DAY) == 0
    housekeeper = Housekeeper(
        store, owner="node", folder=tmp_path, retention=Retention(run_seconds=7 * DAY), clock=clock
    )
    with ThreadPoolExecutor(1) as threads:
        housekeeper.turn(threads)
    left = {is_open, recent, "ftjob-strange"}
    assert {path.name for path in runs.iterdir()} == left | {"ftjob-0-first", ".removed-ftjob-0-first"}
    assert {path.name for path in queue.iterdir()} == left
    store.close()
