"""A tenant's pages: its own runs and no other's, changed as its key may, for as long as its key holds."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from cohort.runs.requests.trial_requests import Answer
from cohort.service.access.gate import CallerCache, Gate, GateLimits
from cohort.store.enums import JobStatus, KeyScope
from cohort.store.jobs.events import NewEvent
from cohort.store.tables import keys
from cohort.store.tenants.audit import list_audit
from tests.runs.answered_run import answering
from tests.service.admin.tenant_store import pages_of
from tests.service.dashboard.chromium import served_app
from tests.service.hosting.running_service import wait_for
from tests.service.tenant_pages.tenant_runs import API, TenantRuns, page_client, tenant_runs

OF_A_RUN = (
    "run",
    "run/curves",
    "run/evaluations",
    "run/rollouts",
    "run/pace",
    "run/trial?trial=1",
    "run/events",
    "job",
)


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[TenantRuns]:
    found = tenant_runs(tmp_path)
    yield found
    found.store.close()


def address(call: str, run: str) -> str:
    return f"{API}/{call}{'&' if '?' in call else '?'}run={run}"


def test_a_tenant_sees_the_jobs_of_its_project_with_where_they_stand(tenants: TenantRuns) -> None:
    client = page_client(tenants, "acme")
    session = client.get(f"{API}/session").json()
    assert session["pages"] == ["runs", "compare"]
    assert (session["can_control"], session["can_change"]) == (True, False)
    found = client.get(f"{API}/runs").json()
    assert (found["project"], found["root"]) == ("acme/research", "")
    rows = {row["name"]: row for row in found["runs"]}
    assert set(rows) == {tenants.jobs[name].id for name in ("here", "waits", "far")}
    here = rows[tenants.jobs["here"].id]
    assert (here["label"], here["job"]["status"], here["best"]["value"]) == ("cafe", "running", 1.25)
    assert "has not begun to train" in rows[tenants.jobs["waits"].id]["job"]["absent"]
    assert "is on the server 'gpu-2'" in rows[tenants.jobs["far"].id]["job"]["absent"]


def test_a_run_that_is_elsewhere_says_where_and_shows_what_the_service_knows(tenants: TenantRuns) -> None:
    client, far = page_client(tenants, "acme"), tenants.jobs["far"].id
    answer = client.get(address("run", far))
    assert answer.status_code == 409
    assert "is on the server 'gpu-2', whose folder this server does not see" in answer.json()["error"]
    job = client.get(address("job", far)).json()
    assert (job["status"], job["can"]) == ("running", ["pause-job", "cancel-job"])
    assert job["absent"] == answer.json()["error"]
    assert "validation loss=1.25" in job["events"][0]["message"]
    # a node whose folder this server sees as well
    tenants.run("far").root.parent.mkdir(parents=True, exist_ok=True)
    tenants.run("zen").root.rename(tenants.nodes / "gpu-2-there")
    (tenants.nodes / "gpu-2" / "runs").mkdir(parents=True)
    (tenants.nodes / "gpu-2-there").rename(tenants.nodes / "gpu-2" / "runs" / far)
    assert client.get(address("run", far)).json()["title"] == "gsm8k"
    assert client.get(address("job", far)).json()["absent"] == ""


@pytest.mark.parametrize("call", OF_A_RUN)
def test_a_run_of_another_tenant_is_one_that_is_not_there(tenants: TenantRuns, call: str) -> None:
    client, theirs = page_client(tenants, "acme"), tenants.jobs["zen"].id
    invented, acme = f"task-{'x' * 24}", tenants.keys["acme"].key.project_id
    zen = tenants.keys["zen"].key.project_id
    for name in (theirs, invented, f"{zen}/{theirs}", f"{zen}/{invented}", f"{acme}/{theirs}", f"../runs/{theirs}", ""):
        answer = client.get(address(call, name))
        assert (answer.status_code, answer.json()) == (404, {"error": f"there is no run {name!r} here"})
    if call != "run/events":
        assert client.get(address(call, f"{acme}/{tenants.jobs['here'].id}")).status_code == 200


@pytest.mark.parametrize("route", ["preview", "ask"])
def test_nothing_of_another_tenant_is_changed(tenants: TenantRuns, route: str) -> None:
    theirs = tenants.jobs["zen"]
    before = len(list_audit(tenants.store.database).items)
    for kind in ("pause-job", "cancel-job", "stop"):
        body = {"kind": kind, **({"trial": 3} if kind == "stop" else {})}
        client = page_client(tenants, "acme")
        for name in (theirs.id, f"{theirs.project_id}/{theirs.id}"):
            assert client.post(address(f"run/{route}", name), json=body).status_code == 404
        # administrators see it, and change tenants and keys, but not what tenants train
        looking = page_client(tenants, "admin")
        refused = looking.post(address(f"run/{route}", f"{theirs.project_id}/{theirs.id}"), json=body)
        assert refused.status_code == 403
        assert "a key of the job's project" in refused.json()["error"]
    assert tenants.store.project(theirs.project_id).jobs.get(theirs.id).status is JobStatus.RUNNING
    assert not tenants.run("zen").requests.exists()
    assert len(list_audit(tenants.store.database).items) == before


def test_administrators_open_the_runs_of_each_project_and_tenants_only_their_own(tenants: TenantRuns) -> None:
    zen = tenants.keys["zen"].key.project_id
    admin = page_client(tenants, "admin")
    assert admin.get(f"{API}/session").json()["can_control"] is False
    found = admin.get(f"{API}/runs", params={"project": zen}).json()
    (row,) = found["runs"]
    assert (found["project"], row["name"]) == ("zen/research", f"{zen}/{tenants.jobs['zen'].id}")
    run = admin.get(address("run", row["name"])).json()
    assert (run["label"], run["may_change"]) == ("secret-of-zen", False)
    assert admin.get(address("job", row["name"])).json()["can"] == []
    assert admin.get(f"{API}/runs").json()["runs"] == []
    assert admin.get(f"{API}/runs", params={"project": "proj_none"}).status_code == 404
    refused = page_client(tenants, "acme").get(f"{API}/runs", params={"project": zen})
    assert refused.status_code == 404
    assert "secret-of-zen" not in refused.text


def test_no_answer_names_a_place_of_the_server(tenants: TenantRuns) -> None:
    client, here = page_client(tenants, "acme"), tenants.jobs["here"].id
    texts = [client.get(f"{API}/runs").text, client.get(f"{API}/session").text]
    texts += [client.get(address(call, here)).text for call in OF_A_RUN if call != "run/events"]
    body = {"kind": "stop", "trial": 3}
    texts += [client.post(address(f"run/{route}", here), json=body).text for route in ("preview", "ask")]
    tenants.run("here").database.write_bytes(b"no database at all, but long enough to look like a file of one" * 20)
    torn = client.get(address("run/pace", here))
    assert torn.status_code == 503
    texts += [torn.text, client.get(f"{API}/runs").text]
    assert not [text for text in texts if str(tenants.nodes.parent) in text]
    assert "the server that goes on with the job" in texts[-4]


def test_a_trial_is_changed_as_by_the_api_and_the_audit_log_names_the_key(tenants: TenantRuns) -> None:
    client, here, key = page_client(tenants, "acme"), tenants.jobs["here"].id, tenants.keys["acme"].key.id
    body = {"kind": "clone", "trial": 0, "values": {"r": 8}}
    plan = client.post(address("run/preview", here), json=body).json()
    assert "A copy of trial 0 with r 8" in plan["does"]
    assert not tenants.run("here").requests.exists()
    with answering(tenants.run("here"), Answer(text="trial 4 is a clone of trial 0", trial_id=4)) as asked:
        told = client.post(address("run/ask", here), json=body).json()
    assert told == {"text": "trial 4 is a clone of trial 0", "trial": 4, "is_taken_up": True}
    assert [request.who for request in asked] == [f"key {key}, from the pages"]
    entry = list_audit(tenants.store.database).items[0]
    assert (entry.actor, entry.action, entry.target) == (f"key {key}, from the pages", "trial.clone", here)
    assert entry.details == {"trial": 0, "values": {"r": 8}}
    refused = client.post(address("run/ask", here), json={"kind": "stop", "trial": 77})
    assert refused.status_code == 400
    assert "0 to 3" in refused.json()["error"]
    assert list_audit(tenants.store.database).items[0].position == entry.position


def test_a_job_is_paused_resumed_and_cancelled_after_a_word_of_what_that_does(tenants: TenantRuns) -> None:
    client, here = page_client(tenants, "acme"), tenants.jobs["here"].id
    jobs = tenants.store.project(tenants.jobs["here"].project_id).jobs
    for kind, status, then in (
        ("pause-job", JobStatus.PAUSING, ["resume-job", "cancel-job"]),
        ("resume-job", JobStatus.RUNNING, ["pause-job", "cancel-job"]),
        ("cancel-job", JobStatus.CANCELLED, []),
    ):
        before = jobs.get(here).status
        plan = client.post(address("run/preview", here), json={"kind": kind}).json()
        assert all(plan[part] for part in ("does", "undo", "when"))
        assert jobs.get(here).status is before
        told = client.post(address("run/ask", here), json={"kind": kind})
        assert told.json()["text"] == f"cafe is {status}."
        assert jobs.get(here).status is status
        assert client.get(address("job", here)).json()["can"] == then
    late = client.post(address("run/ask", here), json={"kind": "pause-job"})
    assert (late.status_code, "is cancelled" in late.json()["error"]) == (409, True)
    actions = [entry.action for entry in list_audit(tenants.store.database).items[:3]]
    assert actions == ["job.cancel", "job.resume", "job.pause"]
    # the process of another tenant's worker is no one's to end
    assert client.post(address("run/ask", here), json={"kind": "stop-run"}).status_code == 400


def test_a_change_needs_the_token_of_the_page(tenants: TenantRuns) -> None:
    client, here = page_client(tenants, "acme"), tenants.jobs["here"].id
    token = client.headers.pop("x-csrf-token")
    foreign = page_client(tenants, "acme").headers["x-csrf-token"]
    for headers in ({}, {"x-csrf-token": foreign}, {"x-csrf-token": token, "origin": "http://evil.example"}):
        refused = client.post(address("run/ask", here), json={"kind": "cancel-job"}, headers=headers)
        assert refused.status_code == 403
    form = client.post(address("run/ask", here), data={"kind": "cancel-job"}, headers={"x-csrf-token": token})
    assert form.status_code == 415
    assert tenants.store.project(tenants.jobs["here"].project_id).jobs.get(here).status is JobStatus.RUNNING


@pytest.mark.parametrize("end", ["revoke", "leave"])
def test_a_session_ends_with_its_key_on_every_route(tenants: TenantRuns, end: str) -> None:
    client, here = page_client(tenants, "acme"), tenants.jobs["here"].id
    assert client.get(address("run", here)).status_code == 200
    if end == "revoke":
        tenants.store.keys.revoke(tenants.keys["acme"].key.id, actor="test")
    else:
        cookie = dict(client.cookies)
        client.post(f"{API}/session", json={"leave": True})
        # a copy of the cookie opens nothing either
        client.cookies.update(cookie)
    for call in (*OF_A_RUN, "runs"):
        assert client.get(address(call, here)).status_code == 401, call
    assert client.post(address("run/ask", here), json={"kind": "cancel-job"}).status_code == 401
    assert client.get(f"{API}/session").json()["is_open"] is False


class Stream:
    """Reads a stream of events in a thread."""

    def __init__(self, url: str, cookies: Any) -> None:
        self.heard: list[dict[str, Any]] = []
        self.status = 0
        self._url, self._cookies = url, dict(cookies)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with httpx.stream("GET", self._url, cookies=self._cookies, timeout=60) as answer:
            self.status = answer.status_code
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    self.heard.append(json.loads(line[6:]))

    def wait(self, seconds: float = 60.0) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the stream goes on"


def expire(tenants: TenantRuns, key_id: str) -> None:
    database = tenants.store.database
    with database.write() as connection:
        now = database.now(connection)
        connection.execute(update(keys).where(keys.c.id == key_id).values(expires_at=now))


def test_a_stream_tells_what_happens_and_ends_with_the_key(tenants: TenantRuns) -> None:
    here = tenants.jobs["here"]
    project = tenants.keys["acme"].key.project_id
    dated = tenants.store.keys.create(project, actor="test", scopes=[KeyScope.TASKS], lifetime_seconds=3600.0)
    with served_app(pages_of(tenants.store, nodes=tenants.nodes, can_change=False)) as url:
        streams = []
        for key in (tenants.keys["acme"], dated):
            with httpx.Client(base_url=f"{url}dashboard/api") as client:
                assert client.post("/session", json={"key": key.text}).status_code == 200
                begun = client.get("/run", params={"run": here.id}).json()
                after = f"{begun['generation']}:-1:0"
                own = f"{url}dashboard/api/run/events?run={here.id}&after={after}"
                streams.append(Stream(own, client.cookies))
        lasting, expiring = streams
        wait_for(lambda: all(stream.heard for stream in streams))
        expire(tenants, dated.key.id)
        expiring.wait()
        assert expiring.heard[-1] == {"reload": True}, "the page loads again, and is asked for a key"
        # what the viewer did not hold; a model is what clients call it, not where it lies
        assert {lasting.heard[0]["header"][name] for name in ("directory", "holder", "model")} == {""}
        assert lasting.heard[-1] != {"reload": True}
        tenants.store.keys.revoke(tenants.keys["acme"].key.id, actor="test")
        lasting.wait()
        assert lasting.heard[-1] == {"reload": True}
        refused = httpx.get(f"{url}dashboard/api/run/events?run={here.id}")
        assert refused.status_code == 401


def test_a_session_of_one_server_process_is_known_to_another(tenants: TenantRuns) -> None:
    one, other = page_client(tenants, "acme"), page_client(tenants)
    other.cookies.update(dict(one.cookies))
    assert other.get(address("run", tenants.jobs["here"].id)).status_code == 200
    other.headers["x-csrf-token"] = one.headers["x-csrf-token"]
    assert other.post(address("run/ask", tenants.jobs["here"].id), json={"kind": "pause-job"}).status_code == 200


def test_old_events_are_left_to_the_api(tenants: TenantRuns) -> None:
    claim = tenants.store.claims.claim(tenants.jobs["waits"].id, "node", seconds=60)
    assert claim is not None
    for number in range(60):
        tenants.store.claims.update(claim[0], events=[NewEvent(message=f"message {number}")])
    found = page_client(tenants, "acme").get(address("job", tenants.jobs["waits"].id)).json()["events"]
    assert [event["message"] for event in found] == [f"message {59 - number}" for number in range(40)]


def test_a_job_that_left_no_run_on_a_server_that_is_seen_is_not_said_to_be_elsewhere(tenants: TenantRuns) -> None:
    client, here = page_client(tenants, "acme"), tenants.jobs["here"]
    shutil.rmtree(tenants.run("here").root)
    assert "is being prepared" in client.get(address("job", here.id)).json()["absent"]
    tenants.store.project(here.project_id).jobs.cancel(here.id)
    absent = client.get(address("job", here.id)).json()["absent"]
    assert "ended before its first step, or its run directory was removed" in absent
    assert "server" not in absent


def test_the_log_of_requests_names_the_project_and_the_key(
    tenants: TenantRuns, caplog: pytest.LogCaptureFixture
) -> None:
    pages = pages_of(tenants.store, nodes=tenants.nodes, can_change=False)
    callers = CallerCache(tenants.store.keys.find, seconds=0.0)
    client = TestClient(
        Gate(pages, callers=callers, limits=GateLimits(), count_answer=lambda *_: None),
        base_url="http://127.0.0.1:8000",
    )
    client.post(f"{API}/session", json={"key": tenants.keys["acme"].text})
    with caplog.at_level(logging.INFO, logger="cohort.access"):
        assert client.get(f"{API}/runs").status_code == 200
    (record,) = caplog.records
    assert record.fields["project"] == tenants.keys["acme"].key.project_id  # type: ignore[attr-defined]
    assert record.fields["key"] == tenants.keys["acme"].key.id  # type: ignore[attr-defined]
