"""The playground in a real Chromium: several models answer one prompt, and the address keeps what was asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.service.dashboard.model_server import ModelServer
from cohort.service.dashboard.settings import DashboardSettings
from cohort.service.settings import ServedSettings
from tests.service.dashboard.chromium import served, watched_page
from tests.service.running_server import running, write_served

pytestmark = pytest.mark.browser
ATTACK = "<img src=x onerror=alert(1)>"


def test_models_answer_next_to_each_other(chromium: Any, tmp_path: Path) -> None:
    model = write_served(tmp_path)
    (tmp_path / "adapters" / "a2").rename(tmp_path / "adapters" / ATTACK)
    settings = ServedSettings(model=str(model), adapters=(str(tmp_path / "adapters"),), names=("base",), gpus=0)
    with running(settings) as models:
        pages = DashboardSettings(root=tmp_path, models=ModelServer(models.url))
        with served(pages) as url, watched_page(chromium, url) as page:
            page.goto(f"{url}#/playground")
            # the base model and the first adapter are chosen from the start
            page.get_by_role("checkbox", name="a0").check()
            page.get_by_role("textbox", name="Prompt").fill(f"{ATTACK}1+2=")
            page.get_by_role("spinbutton", name="Most tokens").fill("8")
            page.get_by_role("button", name="Answer").click()
            page.locator("pre[aria-busy=false]").nth(2).wait_for()
            for place, name in enumerate(("base", ATTACK, "a0")):
                exact = models.complete(name, f"{ATTACK}1+2=", max_tokens=8)
                assert page.locator(".answers pre").nth(place).text_content() == (exact or "(an empty answer)")
            assert page.locator("main img").count() == 0
            page.reload()
            page.get_by_role("button", name="Answer").wait_for()
            assert page.get_by_role("textbox", name="Prompt").input_value() == f"{ATTACK}1+2="
            assert page.get_by_role("checkbox", checked=True).count() == 3
        models.assert_nothing_is_held()


def test_without_a_server_it_says_how_to_start_one(chromium: Any, tmp_path: Path) -> None:
    with served(DashboardSettings(root=tmp_path)) as url, watched_page(chromium, url) as page:
        page.goto(f"{url}#/playground")
        page.get_by_text("cohort dashboard runs --playground").wait_for()
