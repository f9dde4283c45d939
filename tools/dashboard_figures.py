"""Take the pictures of the pages: docs/figures/dashboard-{sweep,phone,tenant,service}.png.

Usage: ``python tools/dashboard_figures.py``, with Chromium and the extra ``browser``; a runs folder must not be at
/tmp/runs. Runs are synthetic, so that the pictures show what pages show and no one's data.
"""

from __future__ import annotations

import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from cohort.core.clock import ManualClock  # noqa: E402
from cohort.runs.directory import RunDirectory  # noqa: E402
from cohort.service.dashboard.settings import DashboardSettings  # noqa: E402
from cohort.store.enums import JobKind, JobStatus, KeyScope, UsageKind  # noqa: E402
from cohort.store.jobs.events import NewEvent  # noqa: E402
from cohort.store.jobs.project_jobs import NewJob  # noqa: E402
from cohort.store.store import Store, open_store  # noqa: E402
from cohort.store.tenants.tenants import Quotas  # noqa: E402
from tests.runs.synthetic_run import SyntheticRun, write_synthetic_run  # noqa: E402
from tests.service.admin.tenant_store import pages_of  # noqa: E402
from tests.service.dashboard.chromium import browser_here, served, served_app  # noqa: E402

# it is in the pictures
FOLDER = Path("/tmp/runs")
FIGURES = REPOSITORY / "docs" / "figures"
# suffix, status, trials of the run; a job that waits has none
_JOBS = (
    ("support-bot", JobStatus.SUCCEEDED, SyntheticRun(trials=24, seed=1)),
    ("ranking", JobStatus.RUNNING, SyntheticRun(seed=2, finished=False)),
    ("summaries", JobStatus.PAUSED, SyntheticRun(trials=16, seed=3, finished=False)),
    ("tickets", JobStatus.QUEUED, None),
)
_PROJECTS = (
    ("acme/research", 2.0, Quotas(max_open_jobs=4, max_tokens_per_day=20_000_000)),
    ("acme/support bot", 0.5, Quotas(max_stored_bytes=20 << 30)),
    ("contoso/search-ranking", 1.0, Quotas(max_tokens_per_day=20_000_000)),
    ("globex/default", 0.5, Quotas(max_tokens_per_day=20_000_000)),
    ("globex/evals", 1.0, Quotas()),
    ("northwind/default", 0.5, Quotas(max_tokens_per_day=20_000_000, max_stored_bytes=20 << 30)),
    ("zen/default", 1.0, Quotas()),
)


def _job(store: Store, nodes: Path, project_id: str, suffix: str, status: JobStatus, run: SyntheticRun | None) -> None:
    new = NewJob(base_model="qwen-0.5b", request={}, kind=JobKind.TASK, suffix=suffix)
    job = store.project(project_id).jobs.create(new, events=[NewEvent(message="Created task for qwen-0.5b")])
    path = [JobStatus.QUEUED, JobStatus.RUNNING, *({JobStatus.PAUSED: [JobStatus.PAUSING]}.get(status, [])), status]
    for wanted in path[: path.index(status) + 1]:
        claimed = store.claims.claim(job.id, "node", seconds=3600)
        if claimed is None:
            return
        store.claims.update(claimed[0], status=wanted, run_directory=f"node/runs/{job.id}")
        store.claims.release(claimed[0])
        if wanted is JobStatus.RUNNING:
            assert run is not None, "what trains has a run"
            write_synthetic_run(RunDirectory.create(nodes / "node" / "runs" / job.id).database, run)


def _used_service(folder: Path) -> tuple[Store, str]:
    """Return a store of seven projects that used something for 30 days, and an administrator's key."""
    clock, random = ManualClock(datetime(2026, 10, 30, 9, tzinfo=UTC)), Random(0)
    store = open_store(folder, clock=clock)
    projects = []
    for name, weight, quotas in _PROJECTS:
        organisation, _, project = name.partition("/")
        known = {each.name: each.id for each in store.tenants.organisations()}
        owner = known.get(organisation) or store.tenants.add_organisation(organisation, actor="figures").id
        projects.append(store.tenants.add_project(owner, project, actor="figures", weight=weight, quotas=quotas).id)
    for day in range(30):
        clock.advance(86400 if day else 0)
        for project_id in projects:
            trained = random.uniform(2e6, 8e6)
            used = {UsageKind.TRAINED_TOKENS: trained, UsageKind.PROMPT_TOKENS: random.uniform(1e6, 4e6)}
            store.project(project_id).usage.add({**used, UsageKind.GPU_SECONDS: trained / 1000})
    key = store.keys.create(projects[0], actor="figures", scopes=[KeyScope.ADMIN])
    return store, key.text


def _taken(browser: Any, url: str, name: str, *, width: int, height: int, key: str = "", dark: bool = False) -> None:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    page = context.new_page()
    page.goto(url)
    if key:
        page.get_by_label("Key").fill(key)
        page.get_by_role("button", name="Sign in").click()
    page.locator("td:visible").first.wait_for()
    page.wait_for_timeout(1500)
    page.screenshot(path=str(FIGURES / name))
    context.close()


def main() -> None:
    """Write the runs, take the pictures, remove the runs."""
    FOLDER.mkdir()
    try:
        write_synthetic_run(RunDirectory.create(FOLDER / "gsm8k").database, SyntheticRun())
        write_synthetic_run(RunDirectory.create(FOLDER / "gsm8k-live").database, SyntheticRun(finished=False))
        store = open_store(FOLDER / "service")
        project = store.tenants.add_project(
            store.tenants.add_organisation("acme", actor="figures").id, "research", actor="figures"
        )
        key = store.keys.create(project.id, actor="figures", scopes=[KeyScope.TASKS]).text
        nodes = FOLDER / "service" / "nodes"
        for suffix, status, run in _JOBS:
            _job(store, nodes, project.id, suffix, status, run)
        with browser_here() as browser:
            with served(DashboardSettings(root=FOLDER, can_control=True)) as url:
                _taken(browser, f"{url}#/sweep?run=gsm8k", "dashboard-sweep.png", width=1180, height=900)
                live = f"{url}#/sweep?run=gsm8k-live"
                _taken(browser, live, "dashboard-phone.png", width=400, height=1500, dark=True)
            with served_app(pages_of(store, nodes=nodes, can_change=False)) as url:
                _taken(browser, f"{url}dashboard/", "dashboard-tenant.png", width=1180, height=515, key=key)
            used, admin = _used_service(FOLDER / "used")
            with served_app(pages_of(used, can_change=True)) as url:
                _taken(browser, f"{url}dashboard/", "dashboard-service.png", width=1120, height=960, key=admin)
        used.close()
        store.close()
    finally:
        shutil.rmtree(FOLDER)


if __name__ == "__main__":
    main()
