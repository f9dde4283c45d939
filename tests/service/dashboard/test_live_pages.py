"""A run that goes on while people watch: two viewers, a lost connection, and text that would like to be HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.core.events import StepDone
from cohort.runs.fact_groups import RunPlaces
from cohort.runs.facts import RunState
from cohort.runs.records import TrialRecord
from cohort.service.dashboard.settings import DashboardSettings
from cohort.tuning.decisions import Decision, DecisionKind, Reason
from tests.runs.small_run import write_small_run
from tests.service.dashboard.chromium import Cuttable, served, watched_page

pytestmark = pytest.mark.browser

ATTACK = '"><img src=x onerror=alert(1)><script>alert(2)</script>'


def _step(trial_id: int, step: int) -> StepDone:
    return StepDone(trial_id=trial_id, step=step, loss=1.0 / step, grad_norm=0.5, learning_rate=1e-4, num_tokens=100)


def _steps_of(page: Any, trial: int) -> Any:
    row = page.get_by_role("region", name="Trials").locator("tr", has=page.get_by_role("link", name=f"Trial {trial}"))
    return row.locator("td[data-label=steps]")


def test_two_viewers_see_each_step_and_one_catches_up_after_a_lost_connection(chromium: Any, tmp_path: Path) -> None:
    directory, store, _ = write_small_run(tmp_path / "small")
    with (
        directory.lock(),
        served(DashboardSettings(root=tmp_path, poll_seconds=0.1)) as url,
        watched_page(chromium, url) as one,
    ):
        wire = Cuttable(int(url.rstrip("/").rpartition(":")[2]))
        with watched_page(chromium, wire.address) as other:
            one.goto(f"{url}#/sweep?run=small")
            other.goto(f"{wire.address}#/sweep?run=small")
            for page in (one, other):
                page.get_by_text("live", exact=True).wait_for()
            store.trial_entered(3, slot=1)
            store.append([_step(3, 1)])
            for page in (one, other):
                _steps_of(page, 3).get_by_text("1/4").wait_for()
                page.get_by_text("1 of 1 slots in use").wait_for()
            wire.cut()
            other.get_by_text("connection lost").wait_for()
            store.append([_step(3, 2), _step(3, 3)])
            _steps_of(one, 3).get_by_text("3/4").wait_for()
            assert _steps_of(other, 3).inner_text() == "1/4"
            loads: list[str] = []
            other.on("request", lambda request: loads.append(request.url.split("?")[0].rpartition("/")[2]))
            wire.mend()
            _steps_of(other, 3).get_by_text("3/4").wait_for()
            other.get_by_text("live", exact=True).wait_for()
            assert set(loads) == {"events"}, "what was missed comes by itself; nothing is loaded again"
            store.set_facts(state=RunState.DONE)
            store.close()
        wire.close()


def test_a_run_that_appears_is_listed(chromium: Any, tmp_path: Path) -> None:
    with served(DashboardSettings(root=tmp_path, poll_seconds=0.1)) as url, watched_page(chromium, url) as page:
        page.goto(url)
        page.get_by_role("heading", name="No run here yet").wait_for()
        write_small_run(tmp_path / "later")[1].close()
        page.get_by_role("link", name="later").wait_for()


def test_no_text_of_a_run_becomes_html(chromium: Any, tmp_path: Path) -> None:
    _, store, _ = write_small_run(tmp_path / "<b>run")
    store.set_facts(task_name=ATTACK, places=RunPlaces(base_model=ATTACK), search_ended=ATTACK)
    store.add_trials([TrialRecord(trial_id=4, parameters={ATTACK: ATTACK, "r": 24}, planned_steps=4, seed=0)])
    stop = Decision(
        trial_id=4,
        step=0,
        kind=DecisionKind.STOP,
        reason=Reason(ATTACK),
        rule=ATTACK,
        message=ATTACK,
        numbers={ATTACK: 1},
    )
    store.append([], [stop])
    store.close()
    with served(DashboardSettings(root=tmp_path)) as url, watched_page(chromium, url) as page:
        for place in (
            "#/runs",
            "#/sweep?run=%3Cb%3Erun",
            "#/trial?run=%3Cb%3Erun&trial=4",
            "#/compare?runs=%3Cb%3Erun",
        ):
            page.goto("about:blank")
            page.goto(f"{url}{place}&q=" + ("" if "runs" in place else "<img src=x onerror=alert(3)>"))
            page.get_by_text("<b>run").first.wait_for()
            page.wait_for_load_state("networkidle")
            assert page.locator("img, b, main script").count() == 0, place
