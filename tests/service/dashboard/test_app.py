"""The routes, over real records of runs: what they answer, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from cohort.core.statistics.estimates import Estimate
from cohort.runs.results.comparison import Comparison, Contender
from cohort.service.dashboard import app
from cohort.service.dashboard.settings import DashboardSettings
from tests.runs.small_run import write_small_run
from tests.service.dashboard.conftest import client_of
from tests.task_queue.small_queue import write_small_queue

STATIC = Path(app.__file__).parent / "static"


def test_runs_are_listed_with_where_they_stand(client: TestClient) -> None:
    rows = {row["name"]: row for row in client.get("/api/runs").json()["runs"]}
    assert set(rows) == {"small", "night/sweep"}
    assert rows["small"]["best"] == {"trial": 1, "value": 1.25, "step": 1}
    assert rows["small"]["state"] == "stopped"
    assert rows["night/sweep"]["state"] == "done"
    assert rows["night/sweep"]["num_trials"] == 8
    # the best value so far only falls
    values = [value for _, value in rows["night/sweep"]["spark"]]
    assert values == sorted(values, reverse=True)


def test_a_run_that_cannot_be_read_says_why_and_spoils_no_other(client: TestClient, folder: Path) -> None:
    (folder / "torn").mkdir()
    (folder / "torn" / "run.db").write_bytes(b"no database at all, but long enough to look like a file of one" * 20)
    rows = {row["name"]: row for row in client.get("/api/runs").json()["runs"]}
    assert "run.db" in rows["torn"]["error"]
    assert rows["small"]["num_trials"] == 4
    answer = client.get("/api/run", params={"run": "torn"})
    assert answer.status_code == 503
    assert "run.db" in answer.json()["error"]


def test_a_sweep_has_its_trials_with_their_outcomes_as_the_report_shows_them(client: TestClient) -> None:
    run = client.get("/api/run", params={"run": "small"}).json()
    trials = {row["id"]: row for row in run["trials"]}
    assert [trials[number]["state"] for number in range(4)] == [
        "completed",
        "underperforming",
        "non-finite",
        "waiting",
    ]
    assert run["outcomes"]["completed"] == {
        "label": "completed",
        "shape": "circle",
        "colours": ["#0072b2", "#4aa8e0"],
    }
    assert trials[2]["loss"] is None, "NaN is no JSON"
    # 3 of the 4 steps of trial 1 are not trained, of 400 tokens; trial 2 has no planned tokens
    assert run["saved_tokens"] == 300
    assert trials[1]["can"] == ["resume", "clone"]
    assert trials[3]["can"] == ["stop", "keep", "clone"]
    done = client.get("/api/run", params={"run": "night/sweep"}).json()
    assert all(row["can"] == [] for row in done["trials"]), "nothing is changed once the result is chosen"


def test_curves_are_those_of_the_record(client: TestClient) -> None:
    found = client.get("/api/run/curves", params={"run": "small"}).json()
    assert found["stride"] == 1
    assert found["curves"]["0"] == [[1, 2, 3, 4], [1.0] * 4]
    assert found["curves"]["2"] == [[1], [None]]
    part = client.get("/api/run/curves", params={"run": "small", "first": 2, "last": 3, "trials": "0"}).json()
    assert part["curves"] == {"0": [[2, 3], [1.0, 1.0]]}
    evaluations = client.get("/api/run/evaluations", params={"run": "small"}).json()
    assert evaluations["loss"]["0"] == [[2, 4], [2.0, 1.5]]


def test_the_page_of_a_trial_has_its_decisions_and_evaluations(client: TestClient) -> None:
    page = client.get("/api/run/trial", params={"run": "small", "trial": 1}).json()
    assert [entry["kind"] for entry in page["decisions"]] == ["new_best", "stop"]
    assert page["evaluations"][0]["loss"] == 1.25
    missing = client.get("/api/run/trial", params={"run": "small", "trial": 17})
    assert missing.status_code == 404
    assert "no trial 17" in missing.json()["error"]


@pytest.mark.parametrize("name", ["..", "../small", "/etc", "night", "small/../small", "x" * 400, ""])
def test_a_name_is_no_path(client: TestClient, name: str) -> None:
    for route in ("run", "run/curves", "run/evaluations", "run/trial", "run/events"):
        assert client.get(f"/api/{route}", params={"run": name}).status_code == 404


@pytest.mark.parametrize("text", ["\u00b2", "9" * 18, "9" * 5000, "-1", "x"])
def test_what_is_no_number_of_a_run_is_passed_over(client: TestClient, text: str) -> None:
    for name in ("trials", "first", "last"):
        assert client.get("/api/run/curves", params={"run": "small", name: text}).status_code == 200, name
    assert client.get("/api/run/trial", params={"run": "small", "trial": text}).status_code == 404
    stream = client.get("/api/run/events", params={"run": "small", "after": f"other:{text}:{text}"})
    assert stream.status_code == 200
    assert b'"reload":true' in stream.content


@pytest.mark.parametrize(
    "name", ["../app.py", "%2e%2e/app.py", "vendor", "nothing.js", "a%00.js", "", "../../settings.py"]
)
def test_only_static_files_are_sent(client: TestClient, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404


def test_every_static_file_is_sent_with_its_type_and_needs_nothing_else(client: TestClient) -> None:
    total = 0
    for path in [path for path in STATIC.rglob("*") if path.is_file() and path.suffix != ".txt"]:
        name = path.relative_to(STATIC).as_posix()
        answer = client.get(f"/static/{name}")
        assert answer.status_code == 200, name
        assert answer.headers["content-type"].split(";")[0] in (
            "text/javascript",
            "text/css",
            "text/html",
            "image/svg+xml",
        )
        total += len(answer.content)
        if "vendor" not in name:
            assert "https://" not in answer.text, f"{name} asks another host"
            assert "innerHTML" not in answer.text, f"{name} takes text for HTML"
    assert client.get("/static/palette.css").status_code == 200
    assert total < 400_000, "the weight of all pages together, before compression"


def test_every_answer_says_what_the_page_may_load(client: TestClient) -> None:
    for path in ("/", "/static/app.js", "/api/runs", "/api/nothing", "/api/run?run=nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_a_dashboard_that_only_shows_changes_nothing(client: TestClient, folder: Path) -> None:
    token = client.get("/api/session").json()["csrf"]
    for route in ("preview", "ask"):
        answer = client.post(
            f"/api/run/{route}",
            params={"run": "small"},
            json={"kind": "stop", "trial": 3},
            headers={"x-csrf-token": token},
        )
        assert answer.status_code == 403
        assert "--control" in answer.json()["error"]
    assert not (folder / "small" / "requests").exists()


def test_what_is_asked_wrongly_is_refused_in_words(folder: Path) -> None:
    client = client_of(DashboardSettings(root=folder, can_control=True))
    headers = {"x-csrf-token": client.get("/api/session").json()["csrf"]}

    def asked(content: str) -> tuple[int, str]:
        own = {**headers, "content-type": "application/json"}
        answer = client.post("/api/run/ask", params={"run": "small"}, content=content, headers=own)
        return answer.status_code, answer.json()["error"]

    assert asked("no JSON") == (400, "the body is no JSON object")
    assert asked("[1]") == (400, "the body is no JSON object")
    assert asked('{"kind": "burn", "trial": 1}')[0] == 400
    assert asked('{"kind": "stop"}')[0] == 400
    assert asked('{"kind": "stop", "trial": 1, "values": {"r": 4}}')[0] == 400
    # this record has no task: nothing can be added to it
    status, text = asked('{"kind": "stop", "trial": 3}')
    assert status == 400
    assert "has not begun" in text
    status, text = asked('{"kind": "stop-run"}')
    assert status == 409
    assert "no process trains it" in text


def test_one_run_or_an_empty_folder_may_be_shown_as_well(folder: Path, tmp_path: Path) -> None:
    one = client_of(DashboardSettings(root=folder / "small"))
    assert [row["name"] for row in one.get("/api/runs").json()["runs"]] == ["."]
    assert one.get("/api/run").json()["title"] == "gsm8k"
    empty = client_of(DashboardSettings(root=folder / "night" / "no-run"))
    assert empty.get("/api/runs").json()["runs"] == []


def test_a_queue_is_shown_as_planned_and_as_it_goes(folder: Path) -> None:
    write_small_queue(folder / "night")
    client = client_of(DashboardSettings(root=folder))
    assert client.get("/api/queues").json() == {"queues": ["night"]}
    tasks = client.get("/api/queue", params={"queue": "night"}).json()["tasks"]
    assert [task["name"] for task in tasks] == list("abcde")
    assert tasks[0]["start_seconds"] == 10.0
    assert client.get("/api/queue", params={"queue": "../night"}).status_code == 404


def test_the_final_comparison_is_shown_with_its_rows_as_places_follow_from_it(tmp_path: Path) -> None:
    _, store, _ = write_small_run(tmp_path / "small")

    def page() -> dict[str, Any]:
        found: dict[str, Any] = client_of(DashboardSettings(root=tmp_path / "small")).get("/api/run").json()
        return found

    assert page()["final_rows"] is None
    # trial 1 has the better value so far, and trial 0 the better one on all rows

    def contender(trial: int, step: int, value: float) -> Contender:
        def estimate(found: float) -> dict[str, Estimate]:
            return {"loss": Estimate(value=found, low=None, high=None, num_rows=64)}

        return Contender(trial_id=trial, step=step, values=estimate(value), winner_minus=estimate(1.2 - value))

    ranked = (contender(0, 4, 1.2), contender(1, 1, 1.3))
    store.set_facts(finals=Comparison(num_rows=64, num_available=64, num_tokens=0, ranked=ranked, others=()))
    store.close()
    found = page()
    rows = {row["id"]: row for row in found["trials"]}
    assert found["final_rows"] == 64
    assert [(rows[trial]["place"], rows[trial]["final"], rows[trial]["best"]) for trial in (0, 1)] == [
        (1, 1.2, 1.5),
        (2, 1.3, 1.25),
    ]
    assert (rows[3]["final"], found["best"]["trial"]) == (None, 0)
