"""The page of a service in a real browser: signing in, tenants, each change, text of data, phones and axe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.admin.tenant_store import TwoTenants, pages_of, two_tenants
from tests.service.dashboard.chromium import axe_script, serious_findings, served_app, watched_page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoTenants]:
    found = two_tenants(tmp_path_factory.mktemp("service"))
    yield found
    found.store.close()


@pytest.fixture(scope="module")
def address(tenants: TwoTenants) -> Iterator[str]:
    with served_app(pages_of(tenants.store, can_change=True)) as url:
        yield f"{url}dashboard/"


def signed_in(page: Any, address: str, key: str, place: str = "") -> None:
    page.goto(f"{address}{place}")
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def test_an_administrator_signs_in_and_finds_every_tenant(chromium: Any, address: str, tenants: TwoTenants) -> None:
    with watched_page(chromium, address) as page:
        signed_in(page, address, tenants.admin)
        row = page.get_by_role("row").filter(has_text="acme/research")
        row.wait_for()
        assert "250k" in row.inner_text()
        assert "of 1M" in row.inner_text()
        page.get_by_label("Filter projects").fill("zen")
        row.wait_for(state="detached")
        assert "q=zen" in page.url
        page.reload()
        page.get_by_text("zen/default").wait_for()
        assert page.get_by_text("acme/research").count() == 0
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Key").wait_for()


def test_each_change_says_what_it_does_and_a_key_is_shown_once(
    chromium: Any, address: str, tenants: TwoTenants
) -> None:
    store = tenants.store
    with watched_page(chromium, address) as page:
        signed_in(page, address, tenants.admin)
        page.get_by_role("button", name="Add a project").click()
        page.get_by_label("organisation/project").fill("acme/new")
        page.get_by_role("button", name="See what it does").click()
        page.get_by_text("may use the service, with weight 1").wait_for()
        assert not any(project.name == "new" for project in store.tenants.projects())
        page.get_by_role("dialog").get_by_role("button", name="Add a project").click()
        page.get_by_role("button", name="Close").click()
        page.get_by_role("link", name="acme/new").click()
        page.get_by_role("button", name="Set quotas").click()
        page.get_by_label("most stored bytes").fill("2GB")
        page.get_by_label("most open jobs").fill("many")
        page.get_by_role("button", name="See what it does").click()
        page.get_by_role("alert").filter(has_text="max_open_jobs").wait_for()
        page.get_by_label("most open jobs").fill("3")
        page.get_by_role("button", name="See what it does").click()
        page.get_by_text("What it does.").wait_for()
        page.get_by_role("dialog").get_by_role("button", name="Set quotas").click()
        page.get_by_role("button", name="Close").click()
        project = store.tenants.project("acme/new")
        assert (project.max_stored_bytes, project.max_open_jobs) == (2_000_000_000, 3)
        page.get_by_role("button", name="Make a key").click()
        page.get_by_role("checkbox", name="tinker").uncheck()
        page.get_by_role("button", name="See what it does").click()
        page.get_by_text("only its SHA-256 is kept").wait_for()
        page.get_by_role("dialog").get_by_role("button", name="Make a key").click()
        secret = page.locator("dialog pre").inner_text()
        caller = store.keys.find(secret)
        assert caller is not None
        assert len(caller.key.scopes) == 3
        page.get_by_role("button", name="Close").click()
        page.get_by_role("button", name=f"Revoke {caller.key.prefix}").click()
        page.get_by_text("opens nothing any more").wait_for()
        page.get_by_role("button", name="Revoke the key").click()
        page.get_by_role("button", name="Close").click()
        page.get_by_text("revoked", exact=True).wait_for()
        assert secret not in page.content()
    assert store.keys.find(secret) is None


def test_text_of_tenants_is_never_html(chromium: Any, address: str, tenants: TwoTenants) -> None:
    with watched_page(chromium, address) as page:
        signed_in(page, address, tenants.admin, f"#/service?project={tenants.projects['default']}")
        page.get_by_text("<img src=x onerror=alert(1)>").first.wait_for()
        assert page.locator("main img").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_screen(
    chromium: Any, address: str, tenants: TwoTenants, width: int, scheme: str
) -> None:
    axe = axe_script()
    with watched_page(chromium, address, viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        signed_in(page, address, tenants.admin)
        page.locator("td").first.wait_for()
        assert not serious_findings(page, axe)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.goto(f"{address}#/service?project={tenants.projects['research']}")
        page.get_by_text("What was changed").wait_for()
        assert not serious_findings(page, axe)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("button", name="Set the weight").click()
        assert not serious_findings(page, axe)
