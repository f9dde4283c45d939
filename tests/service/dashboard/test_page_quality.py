"""Pages for everybody: nothing serious for axe, no sideways scrolling on a phone, light and dark; and soon there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cohort.runs.directory import RunDirectory
from cohort.service.dashboard.settings import DashboardSettings
from tests.runs.synthetic_run import SyntheticRun, write_synthetic_run
from tests.service.dashboard.chromium import axe_script, serious_findings, served, watched_page

pytestmark = pytest.mark.browser

PAGES = {
    "runs": "#/runs",
    "sweep": "#/sweep?run=live&pin=4,12",
    "trial": "#/trial?run=live&trial=56",
    "sweep with answers": "#/sweep?run=rewards",
    "trial with answers": "#/trial?run=rewards&trial=1",
    "compare": "#/compare?runs=live",
    "queue": "#/queue",
    "sign in": "",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_synthetic_run(RunDirectory.create(folder / "live").database, SyntheticRun(finished=False))
    drawing = SyntheticRun(trials=8, steps=40, slots=4, draws_answers=True)
    write_synthetic_run(RunDirectory.create(folder / "rewards").database, drawing)
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(DashboardSettings(root=folder, can_control=True)) as url:
        yield url


@pytest.fixture(scope="module")
def locked(folder: Path) -> Iterator[str]:
    with served(DashboardSettings(root=folder, api_keys=("key",))) as url:
        yield url


@pytest.fixture(scope="module")
def axe() -> str:
    return axe_script()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_screen(
    chromium: Any, address: str, locked: str, axe: str, width: int, scheme: str
) -> None:
    viewport = {"width": width, "height": 900}
    for name, place in PAGES.items():
        url = locked if name == "sign in" else address
        with watched_page(chromium, url, viewport=viewport, color_scheme=scheme) as page:
            page.goto(f"{url}{place}")
            page.locator("h1").wait_for()
            page.wait_for_load_state("networkidle") if name in ("queue", "sign in") else page.locator(
                "td"
            ).first.wait_for()
            serious = serious_findings(page, axe)
            assert not serious, f"{name}: {json.dumps(serious, indent=1)}"
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name


def test_dialogs_of_controls_have_nothing_serious_either(chromium: Any, address: str, axe: str) -> None:
    with watched_page(chromium, address) as page:
        page.goto(f"{address}#/sweep?run=live")
        page.get_by_role("button", name="clone trial 56").click()
        page.get_by_role("dialog").wait_for()
        assert not serious_findings(page, axe)
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")


def test_the_first_curves_of_sixty_trials_come_with_the_first_answers(chromium: Any, address: str) -> None:
    # how long they take is measured by benchmarks.command.dashboard
    asked: list[str] = []
    with watched_page(chromium, address) as page:
        page.on("response", lambda answer: asked.append(answer.url) if "/api/" in answer.url else None)
        page.goto(f"{address}#/sweep?run=live")
        page.locator("canvas[data-curves='60']").wait_for()
    # the pace is asked for next, and its answer may be there before a busy machine has drawn the curves
    paths = [path for url in asked if (path := urlsplit(url).path) != "/api/run/pace"]
    assert len(paths) == len(set(paths)) <= 6, "each is asked once before the curves are there"


def test_a_page_weighs_less_than_400_kilobytes(chromium: Any, address: str) -> None:
    with watched_page(chromium, address) as page:
        weights: list[int] = []
        page.on("response", lambda answer: weights.append(len(answer.body())) if "/static/" in answer.url else None)
        page.goto(f"{address}#/sweep?run=live")
        page.locator("canvas[data-curves]").first.wait_for()
        page.wait_for_timeout(200)
        assert 20_000 < sum(weights) < 400_000
