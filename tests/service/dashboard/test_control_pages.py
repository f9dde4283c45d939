"""Each control on a sweep that trains in another process, by clicks in a real browser."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import CohortError
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.records import TrialRecord
from cohort.service.dashboard.settings import DashboardSettings
from tests.cli.tiny_task import write_tiny_task
from tests.service.dashboard.chromium import served, watched_page

pytestmark = pytest.mark.browser


@contextmanager
def training(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Train four trials in a process of its own, for longer than the test takes, until the block ends."""
    task = write_tiny_task(folder)
    command = [sys.executable, "-m", "cohort", "tune", str(task), "-o", str(folder / "runs" / "mine")]
    command += ["--training.max_steps", "200000", "--evaluation.max_cost_fraction", "0.01"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def trials_of(run: Path) -> dict[int, TrialRecord]:
    with RunReader.open(run / "run.db") as reader:
        return {trial.trial_id: trial for trial in reader.trials()}


def _wait_until_it_trains(run: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 90
    while time.monotonic() < until:
        assert process.poll() is None, process.communicate()
        try:
            if any(trial.steps_done for trial in trials_of(run).values()):
                return
        except CohortError:
            pass
        time.sleep(0.1)
    pytest.fail("the sweep does not train")


def _confirmed(page: Any, button: str, *, title: str, says: str) -> str:
    """Press a button, read what it says it does, confirm, and return the run's answer."""
    page.get_by_role("button", name=button, exact=True).click()
    dialog = page.get_by_role("dialog")
    if dialog.locator("form").count():
        dialog.get_by_role("button", name="See what it does").click()
    dialog.get_by_text("What it does.").wait_for()
    assert says in dialog.inner_text()
    assert "To take it back." in dialog.inner_text()
    dialog.get_by_role("button", name=title, exact=True).click()
    answer = dialog.get_by_role("status")
    answer.wait_for()
    text = str(answer.inner_text())
    dialog.get_by_role("button", name="Close").click()
    return text


def test_each_control_does_what_it_says(chromium: Any, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "mine"
    settings = DashboardSettings(root=tmp_path / "runs", can_control=True, poll_seconds=0.2)
    (tmp_path / "runs").mkdir()
    with (
        training(tmp_path) as process,
        served(settings) as url,
        watched_page(chromium, url) as page,
    ):
        _wait_until_it_trains(run, process)
        page.goto(f"{url}#/sweep?run=mine")
        page.get_by_text("live", exact=True).wait_for()
        # nothing is done before it is confirmed
        page.get_by_role("button", name="stop trial 1").click()
        page.get_by_role("dialog").get_by_text("Resume trial 1").wait_for()
        page.get_by_role("button", name="Cancel").click()
        assert not trials_of(run)[1].status.is_final
        assert "1" in _confirmed(page, "stop trial 1", title="Stop trial 1", says="Its best checkpoint still competes")
        page.get_by_role("button", name="resume trial 1").wait_for()
        assert trials_of(run)[1].reason == "stopped by user"
        assert "dashboard" in trials_of(run)[1].message, "the record says who it was"
        _confirmed(page, "resume trial 1", title="Resume trial 1", says="goes on from step")
        page.get_by_role("button", name="stop trial 1").wait_for()
        _confirmed(page, "keep trial 0", title="Keep trial 0", says="No exit rule may stop trial 0")
        page.get_by_role("button", name="keep trial 0").wait_for(state="detached")
        assert trials_of(run)[0].is_protected
        # what the run refuses is said in its words, and can be mended
        page.get_by_role("button", name="clone trial 0").click()
        page.get_by_role("textbox", name="learning_rate").fill("-1")
        page.get_by_role("button", name="See what it does").click()
        page.get_by_role("dialog").get_by_role("alert").wait_for()
        assert "learning_rate" in page.get_by_role("alert").inner_text()
        page.get_by_role("textbox", name="learning_rate").fill("2e-3")
        page.get_by_role("button", name="See what it does").click()
        page.get_by_text("A copy of trial 0 with learning_rate 0.002").wait_for()
        page.get_by_role("button", name="Clone trial 0", exact=True).last.click()
        page.get_by_role("dialog").get_by_role("status").wait_for()
        page.get_by_role("button", name="Close").click()
        page.get_by_role("link", name="Trial 4", exact=True).wait_for()
        assert trials_of(run)[4].parameters["learning_rate"] == 2e-3
        page.get_by_role("button", name="Add a trial").click()
        page.get_by_role("textbox", name="r", exact=True).fill("4")
        page.get_by_role("textbox", name="learning_rate").fill("0.003")
        page.get_by_role("button", name="See what it does").click()
        page.get_by_text("A new trial with").wait_for()
        page.get_by_role("dialog").get_by_role("button", name="Add a trial", exact=True).click()
        page.get_by_role("dialog").get_by_role("status").wait_for()
        page.get_by_role("button", name="Close").click()
        page.get_by_role("link", name="Trial 5", exact=True).wait_for()
        assert "cohort resume" in _confirmed(page, "Stop the run", title="Stop the run", says="saves the state")
        process.wait(timeout=60)
        assert process.returncode == 143, "as after SIGTERM: its state is saved"
        page.get_by_text("up to date").wait_for()
        assert RunDirectory(run).lock().holder() is None
