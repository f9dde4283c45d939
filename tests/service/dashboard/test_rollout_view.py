"""Rewards, lengths and answers of trials that train on their own answers, as pages are given them."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.service.dashboard.rollout_view import answer_views, rollout_curves
from cohort.service.dashboard.settings import DashboardSettings
from tests.runs.synthetic_run import SyntheticRun, write_synthetic_run
from tests.service.dashboard.conftest import client_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    drawing = SyntheticRun(trials=4, steps=40, slots=4, draws_answers=True)
    write_synthetic_run(RunDirectory.create(folder / "rewards").database, drawing)
    write_synthetic_run(RunDirectory.create(folder / "losses").database, SyntheticRun(trials=2, steps=20, slots=2))
    return folder


def test_each_number_that_is_not_zero_is_a_chart_and_the_last_ones_are_columns(folder: Path) -> None:
    with RunReader.open(folder / "rewards" / "run.db") as reader:
        found, steps = rollout_curves(reader), reader.log.steps()
        one = rollout_curves(reader, trials=[2])
    charts = {chart["name"]: chart for chart in found["charts"]}
    assert [*charts] == ["reward", "entropy", "answer_length", "kl", "groups_alike"]
    assert charts["kl"]["caption"] == "Distance from the base model"
    for trial_id in range(4):
        own = [step for step in steps if step.trial_id == trial_id]
        xs, ys = charts["reward"]["curves"][str(trial_id)]
        assert xs == [step.step for step in own]
        assert ys == pytest.approx([step.metrics["reward"] for step in own], rel=1e-4, abs=1e-5)
        assert found["latest"][str(trial_id)]["kl"] == pytest.approx(own[-1].metrics["kl"], rel=1e-4)
    assert {trial for chart in one["charts"] for trial in chart["curves"]} == {"2"}


def test_a_long_run_is_sampled(folder: Path, tmp_path: Path) -> None:
    plan = SyntheticRun(trials=2, steps=2000, slots=2, draws_answers=True)
    path = write_synthetic_run(tmp_path / "run.db", plan)
    with RunReader.open(path) as reader:
        found = rollout_curves(reader)
    assert found["stride"] > 1
    steps = max((curve[0] for chart in found["charts"] for curve in chart["curves"].values()), key=len)
    assert steps == [1, *range(found["stride"], len(steps) * found["stride"], found["stride"])]


def test_other_runs_have_no_chart(folder: Path) -> None:
    with RunReader.open(folder / "losses" / "run.db") as reader:
        assert rollout_curves(reader) == {"charts": [], "latest": {}, "stride": 1}
        assert answer_views(reader, 0) == []


def test_answers_are_those_of_the_first_step_of_the_last_and_of_some_between(folder: Path) -> None:
    with RunReader.open(folder / "rewards" / "run.db") as reader:
        found = answer_views(reader, 1)
        last = max(step.step for step in reader.log.steps(1))
    steps = sorted({one["step"] for one in found})
    assert len(steps) == 8 or len(steps) == last
    assert (steps[0], steps[-1]) == (1, last)
    assert [one["reward"] for one in found[:2]] == [1.0, None]
    assert found[0]["text"] == "It is 2.\nI am sure."


def test_pages_are_given_both(folder: Path) -> None:
    client: TestClient = client_of(DashboardSettings(root=folder))
    found = client.get("/api/run/rollouts", params={"run": "rewards", "trials": "1"}).json()
    assert {trial for chart in found["charts"] for trial in chart["curves"]} == {"1"}
    page = client.get("/api/run/trial", params={"run": "rewards", "trial": 1}).json()
    assert page["answers"][0]["prompt"] == "What is 1 + 1?"
    assert client.get("/api/run/rollouts", params={"run": "nothing"}).status_code == 404
