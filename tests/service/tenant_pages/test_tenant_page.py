"""A tenant's pages in a real browser: signing in, what is here and what is not, changes, a session that ends, axe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cohort.core.events import StepDone
from cohort.runs.requests.trial_requests import Answer
from cohort.runs.store import RunStore
from cohort.store.enums import JobStatus, KeyScope
from tests.runs.answered_run import answering
from tests.service.admin.tenant_store import pages_of
from tests.service.dashboard.chromium import axe_script, serious_findings, served_app, watched_page
from tests.service.tenant_pages.tenant_runs import SCRIPT, TenantRuns, tenant_runs

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TenantRuns]:
    found = tenant_runs(tmp_path_factory.mktemp("service"))
    yield found
    found.store.close()


@pytest.fixture(scope="module")
def address(tenants: TenantRuns) -> Iterator[str]:
    with served_app(pages_of(tenants.store, nodes=tenants.nodes, can_change=True)) as url:
        yield f"{url}dashboard/"


def signed_in(page: Any, address: str, key: str, place: str = "") -> None:
    page.goto(f"{address}{place}")
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def test_a_tenant_signs_in_and_finds_its_runs_and_no_others(chromium: Any, address: str, tenants: TenantRuns) -> None:
    with watched_page(chromium, address) as page:
        signed_in(page, address, "sk-cohort-wrong")
        page.get_by_text("this key is wrong, expired or revoked").wait_for()
        signed_in(page, address, tenants.keys["acme"].text)
        page.get_by_role("link", name="cafe").wait_for()
        assert page.locator("tbody tr").count() == 3
        assert page.get_by_text("secret-of-zen").count() == 0
        assert page.get_by_role("navigation").get_by_role("link", name="Service").count() == 0
        # text of a client is text
        page.get_by_role("link", name=SCRIPT).wait_for()
        assert page.locator("main img").count() == 0
        page.get_by_text("is on the server 'gpu-2'").wait_for()
        page.get_by_role("link", name="later").click()
        page.get_by_text("It has not begun yet").wait_for()
        page.go_back()
        page.get_by_role("link", name=SCRIPT).click()
        page.get_by_text("There are no curves of it here").wait_for()
        page.get_by_text("Trial 1, step 1/4: validation loss=1.25").wait_for()
        page.goto(f"{address}#/sweep?run={tenants.jobs['zen'].id}")
        page.get_by_role("alert").filter(has_text="there is no run").wait_for()


def test_a_sweep_is_live_and_is_changed_as_its_key_may(chromium: Any, address: str, tenants: TenantRuns) -> None:
    run, job = tenants.run("here"), tenants.jobs["here"]
    jobs = tenants.store.project(job.project_id).jobs
    with watched_page(chromium, address) as page:
        signed_in(page, address, tenants.keys["acme"].text, f"#/sweep?run={job.id}")
        page.get_by_role("heading", name="cafe").wait_for()
        row = page.locator("tr").filter(has=page.get_by_role("link", name="Trial 3", exact=True))
        row.wait_for()
        assert "0/4" in row.inner_text()
        store = RunStore.resume(run.database)
        store.append([StepDone(trial_id=3, step=1, loss=0.5, grad_norm=0.5, learning_rate=1e-4, num_tokens=100)])
        store.close()
        page.locator("tr").filter(has=page.get_by_role("link", name="Trial 3", exact=True)).filter(
            has_text="1/4"
        ).wait_for()
        assert str(tenants.nodes.parent) not in page.content()
        with answering(run, Answer(text="trial 3 is kept", trial_id=3)) as asked:
            page.get_by_role("button", name="keep trial 3").click()
            page.get_by_text("No exit rule may stop trial 3").wait_for()
            assert not asked
            page.get_by_role("dialog").get_by_role("button", name="Keep trial 3").click()
            page.get_by_text("trial 3 is kept").wait_for()
            page.get_by_role("button", name="Close").click()
        page.get_by_role("button", name="Pause").click()
        page.get_by_text("keeps its state").wait_for()
        assert jobs.get(job.id).status is JobStatus.RUNNING
        page.get_by_role("dialog").get_by_role("button", name="Pause the job").click()
        page.get_by_text("cafe is pausing").wait_for()
        page.get_by_role("button", name="Close").click()
        page.get_by_text("job pausing").wait_for()
        page.get_by_role("button", name="Resume", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Resume the job").click()
        page.get_by_text("cafe is running").wait_for()


def test_an_administrator_opens_the_runs_of_a_project_and_only_looks(
    chromium: Any, address: str, tenants: TenantRuns
) -> None:
    with watched_page(chromium, address) as page:
        signed_in(page, address, tenants.keys["admin"].text)
        page.get_by_role("link", name="zen/research").click()
        page.get_by_role("link", name="Its runs").click()
        page.get_by_role("link", name="secret-of-zen").click()
        page.get_by_role("heading", name="secret-of-zen").wait_for()
        page.get_by_role("link", name="Trial 1", exact=True).wait_for()
        assert page.get_by_role("button", name="Add a trial").count() == 0
        assert page.get_by_role("button", name="Pause").count() == 0
        page.get_by_role("link", name="Trial 1", exact=True).click()
        page.get_by_role("heading", name="Trial 1").wait_for()


def test_a_page_whose_key_ends_asks_for_one_again(chromium: Any, address: str, tenants: TenantRuns) -> None:
    project = tenants.keys["acme"].key.project_id
    key = tenants.store.keys.create(project, actor="test", scopes=[KeyScope.TASKS])
    with watched_page(chromium, address) as page:
        signed_in(page, address, key.text, f"#/sweep?run={tenants.jobs['here'].id}")
        page.get_by_role("heading", name="cafe").wait_for()
        page.locator("td:visible").first.wait_for()
        tenants.store.keys.revoke(key.key.id, actor="test")
        page.get_by_text("Your session has ended").wait_for()
        assert page.get_by_text("cafe").count() == 0
        page.get_by_label("Key").fill(tenants.keys["acme"].text)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="cafe").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_screen(
    chromium: Any, address: str, tenants: TenantRuns, width: int, scheme: str
) -> None:
    axe = axe_script()
    jobs = tenants.jobs
    with watched_page(chromium, address, viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        signed_in(page, address, tenants.keys["acme"].text)
        for place in (
            "runs",
            f"sweep?run={jobs['here'].id}",
            f"sweep?run={jobs['far'].id}",
            f"sweep?run={jobs['waits'].id}",
        ):
            page.goto(f"{address}#/{place}")
            page.locator("td:visible").first.wait_for()
            assert not serious_findings(page, axe), place
            assert page.evaluate("document.documentElement.scrollWidth") <= width, place
        page.get_by_role("button", name="Cancel the job").click()
        page.get_by_text("There is none: submit the task again").wait_for()
        assert not serious_findings(page, axe)
