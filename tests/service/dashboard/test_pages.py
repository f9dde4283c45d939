"""Each page in a real Chromium: what it shows, where it leads, and that what a viewer chose is in its address."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cohort.runs.directory import RunDirectory
from cohort.runs.lock import RunLock
from cohort.service.dashboard.gpu_price import GpuPrice
from cohort.service.dashboard.settings import DashboardSettings
from tests.runs.small_run import write_small_run
from tests.runs.synthetic_run import SyntheticRun, write_synthetic_run
from tests.service.dashboard.chromium import served, watched_page
from tests.task_queue.small_queue import write_small_queue

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``night`` has 60 trials and is done; ``small`` has four and goes on; those of ``rewards`` draw answers."""
    folder = tmp_path_factory.mktemp("runs")
    write_small_run(folder / "small")[1].close()
    write_synthetic_run(RunDirectory.create(folder / "night").database, SyntheticRun())
    drawing = SyntheticRun(trials=8, steps=40, slots=4, draws_answers=True)
    write_synthetic_run(RunDirectory.create(folder / "rewards").database, drawing)
    with served(DashboardSettings(root=folder)) as url:
        yield url


def test_the_list_filters_sorts_and_leads_to_a_run(chromium: Any, address: str) -> None:
    with watched_page(chromium, address) as page:
        page.goto(address)
        rows = page.locator("tbody tr")
        rows.nth(1).wait_for()
        page.get_by_role("searchbox").fill("night")
        assert rows.count() == 1
        assert "q=night" in page.url
        page.reload()
        rows.first.wait_for()
        assert rows.count() == 1, "the address holds the filter"
        page.get_by_role("searchbox").fill("nothing has this")
        page.get_by_role("button", name="Show all 3").click()
        page.get_by_role("button", name="best so far").click()
        assert rows.first.locator("a").inner_text() == "night"
        rows.first.locator("a").click()
        page.get_by_role("heading", name="night", exact=True).wait_for()
        page.go_back()
        page.get_by_role("heading", name="Runs", exact=True).wait_for()


def test_a_sweep_filters_its_trials_and_draws_those_it_shows(chromium: Any, address: str) -> None:
    with watched_page(chromium, address) as page:
        page.goto(f"{address}#/sweep?run=night")
        chart = page.locator("canvas[data-curves]").first
        chart.wait_for()
        assert chart.get_attribute("data-curves") == "60"
        page.get_by_role("searchbox").fill("r=16 learning_rate>1e-4")
        page.get_by_role("heading", name="Trials (12 of 60)").wait_for()
        assert chart.get_attribute("data-curves") == "12"
        assert page.locator("canvas[data-lines]").get_attribute("data-lines") == "12", (
            "each drawing keeps to the filter"
        )
        page.get_by_text("Filter by value").click()
        page.get_by_role("group", name="batch_size").get_by_role("button", name="4", exact=True).click()
        page.get_by_role("heading", name="Trials (3 of 60)").wait_for()
        # the best first; sorted by rank, the other way round at the second click
        page.get_by_role("searchbox").fill("")
        table = page.get_by_role("region", name="Trials")
        first = table.locator("tbody tr").first.locator("td").nth(1)
        assert first.inner_text() == "56"
        table.get_by_role("button", name="learning_rate").click()
        table.get_by_role("button", name="learning_rate").click()
        assert table.locator("tbody tr").first.locator("td").nth(4).inner_text() == "0.003"
        assert page.locator("th[aria-sort=descending]").count() == 1
        with page.expect_download() as saved:
            page.get_by_role("button", name="CSV").click()
        rows = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text())))
        assert len(rows) == 60
        assert rows[0]["learning_rate"] == "0.003"


def test_a_chart_is_pointed_at_zoomed_saved_and_used_from_the_keyboard(chromium: Any, address: str) -> None:
    with watched_page(chromium, address) as page:
        page.goto(f"{address}#/sweep?run=night")
        chart = page.locator("canvas[data-curves]").first
        chart.wait_for()
        page.wait_for_function("document.querySelector('canvas[data-curves]').width > 300")
        box = chart.bounding_box()
        page.mouse.move(box["x"] + box["width"] - 40, box["y"] + box["height"] - 60)
        tip = page.locator(".chart .tip")
        tip.wait_for()
        assert "trial" in tip.inner_text()
        assert page.locator("tr.hot").count() <= 1
        page.mouse.move(box["x"] + 300, box["y"] + 100)
        page.mouse.down()
        page.mouse.move(box["x"] + 600, box["y"] + 120)
        page.mouse.up()
        page.wait_for_function("location.hash.includes('zoom=')")
        low, high = page.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('zoom')").split("~")
        assert 30 < float(low) < float(high) < 110
        page.get_by_role("button", name="All", exact=True).first.click()
        page.wait_for_function("!location.hash.includes('zoom=')")
        with page.expect_download() as saved:
            page.get_by_role("button", name="PNG").first.click()
        assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")
        chart.focus()
        page.keyboard.press("+")
        page.wait_for_function("location.hash.includes('zoom=')")
        page.keyboard.press("ArrowDown")
        page.wait_for_timeout(200)
        said = page.locator("[aria-live=polite]").first.inner_text()
        page.keyboard.press("Enter")
        page.get_by_role("heading", name=said.partition(":")[0].capitalize(), exact=True).wait_for()


def test_a_trial_shows_its_decisions_and_gives_its_configuration(chromium: Any, address: str) -> None:
    with watched_page(chromium, address, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto(f"{address}#/trial?run=night&trial=32")
        page.get_by_role("region", name="Decisions").wait_for()
        assert "overfitting" in page.get_by_role("region", name="Decisions").inner_text()
        page.get_by_role("button", name="Copy as options").click()
        page.get_by_text("options copied").wait_for()
        assert "--learning_rate 0.0005 --r 64" in page.evaluate("navigator.clipboard.readText()")
        page.goto(f"{address}#/trial?run=night&trial=999")
        assert "there is no trial 999" in page.get_by_role("alert").inner_text()


def test_trials_of_two_runs_are_compared(chromium: Any, address: str) -> None:
    with watched_page(chromium, address) as page:
        page.goto(f"{address}#/runs")
        for name in ("night", "small"):
            page.get_by_role("checkbox", name=f"Compare {name}").check()
        page.get_by_role("link", name="Compare 2").click()
        table = page.get_by_role("region", name="Configurations")
        table.wait_for()
        assert "night, trial 56" in table.inner_text()
        assert "small, trial 1" in table.inner_text()
        assert "lora_dropout" in table.inner_text(), "small has none"
        page.goto(f"{address}#/sweep?run=night&pin=4,12")
        page.get_by_role("link", name="Compare 2").click()
        table.wait_for()
        assert "r" in table.locator("th").all_inner_texts()
        assert "learning_rate" not in table.inner_text(), "both have the same"
        page.get_by_role("button", name="All hyperparameters").click()
        table.get_by_text("learning_rate").wait_for()


def test_queue_and_system_say_what_there_is(chromium: Any, address: str) -> None:
    with watched_page(chromium, address) as page:
        page.goto(f"{address}#/queue")
        page.get_by_role("heading", name="No queue in this folder").wait_for()
        page.get_by_role("link", name="System").click()
        page.get_by_role("heading", name="Versions").wait_for(timeout=60_000)
        assert "torch" in page.locator("main").inner_text()


def test_a_queue_is_drawn_as_planned_and_as_it_goes(chromium: Any, tmp_path: Path) -> None:
    write_small_queue(tmp_path)
    write_small_run(tmp_path / "a")[1].close()
    working = RunLock(tmp_path / ".queue.lock")
    with working, served(DashboardSettings(root=tmp_path)) as url, watched_page(chromium, url) as page:
        page.goto(f"{url}#/queue")
        page.get_by_role("heading", name="Tasks over time").wait_for()
        drawn = page.get_by_role("region", name="Tasks over time").locator("title").all_text_contents()
        assert "b, planned: 6m 40s to 8m 20s" in drawn
        assert any(text.startswith("a, as it went") for text in drawn)
        rows = page.get_by_role("region", name="Tasks", exact=True).locator("tbody tr")
        assert rows.count() == 5
        assert "held (changed)" in rows.last.inner_text()
        rows.first.get_by_role("link", name="a", exact=True).click()
        page.get_by_role("heading", name="Loss curves").wait_for()


def test_a_folder_without_runs_and_a_run_that_is_gone_say_what_to_do(chromium: Any, tmp_path: Path) -> None:
    with served(DashboardSettings(root=tmp_path)) as url, watched_page(chromium, url) as page:
        page.goto(url)
        page.get_by_role("heading", name="No run here yet").wait_for()
        assert f"cohort tune TASK.yaml -o {tmp_path}/mine" in page.locator("pre").inner_text()
        page.goto(f"{url}#/sweep?run=gone")
        assert "there is no run 'gone'" in page.get_by_role("alert").inner_text()


def test_a_key_is_asked_for_once_and_a_wrong_one_is_said(chromium: Any, tmp_path: Path) -> None:
    write_small_run(tmp_path / "small")[1].close()
    settings = DashboardSettings(root=tmp_path, api_keys=("right",))
    with served(settings) as url, watched_page(chromium, url) as page:
        page.goto(url)
        page.get_by_role("textbox", name="Key").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        assert "no key of this server" in page.get_by_role("alert").inner_text()
        page.get_by_role("textbox", name="Key").fill("right")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="small").wait_for()
        assert page.evaluate("document.cookie") == "", "no script reads the session"
        page.reload()
        page.get_by_role("link", name="small").wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("heading", name="Sign in").wait_for()


def test_trials_that_draw_answers_show_rewards_lengths_and_answers(chromium: Any, address: str) -> None:
    with watched_page(chromium, address) as page:
        page.goto(f"{address}#/sweep?run=rewards")
        page.get_by_role("heading", name="Reward of the answers trained on").wait_for()
        reward = page.locator("canvas[data-name=answers-reward]")
        assert reward.get_attribute("data-curves") == "8"
        table = page.get_by_role("region", name="Trials")
        table.get_by_role("button", name="entropy").click()
        assert page.locator("th[aria-sort=ascending]").inner_text().startswith("entropy")
        page.get_by_role("searchbox").fill("r=16")
        page.wait_for_function("document.querySelector('canvas[data-name=answers-reward]').dataset.curves !== '8'")
        with page.expect_download() as saved:
            page.get_by_role("button", name="CSV").click()
        (first, *_) = csv.DictReader(io.StringIO(Path(saved.value.path()).read_text()))
        assert float(first["answer_length"]) > 0
        page.goto(f"{address}#/trial?run=rewards&trial=1")
        answers = page.get_by_role("region", name="Answers", exact=True)
        answers.wait_for()
        assert "What is 1 + 1?" in answers.inner_text()
        assert page.locator("canvas[data-name=answers-kl]").get_attribute("data-curves") == "1"
        # runs without answers have neither
        page.goto(f"{address}#/sweep?run=night")
        page.get_by_role("heading", name="Slots", exact=True).wait_for()
        assert page.get_by_role("heading", name="Answers", exact=True).count() == 0


def test_what_is_left_is_said_in_tokens_and_in_money_where_there_is_a_price(
    chromium: Any, tmp_path: Path, address: str
) -> None:
    write_synthetic_run(RunDirectory.create(tmp_path / "live").database, SyntheticRun(finished=False))
    with watched_page(chromium, address) as page:
        page.goto(f"{address}#/sweep?run=small")
        card = page.locator(".card").filter(has_text="Cost left")
        card.wait_for()
        assert "tokens" in card.inner_text()
        assert "$" not in card.inner_text()
    settings = DashboardSettings(root=tmp_path, gpu_hour=GpuPrice(amount=36.0, currency="USD"))
    with served(settings) as url, watched_page(chromium, url) as page:
        page.goto(url)
        row = page.locator("tbody tr").first
        row.get_by_text("so far").last.wait_for()
        assert "$" in row.inner_text()
        # the last column is on the screen
        assert page.evaluate("(place => place.scrollWidth <= place.clientWidth)(document.querySelector('.scroll'))")
        page.goto(f"{url}#/sweep?run=live")
        card = page.locator(".card").filter(has_text="Cost left")
        card.get_by_text("at $36.00 an hour").wait_for()
        assert page.get_by_text("+00:00").count() == 0, "times are in the viewer's zone"
