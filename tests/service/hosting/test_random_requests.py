"""Requests drawn from the OpenAPI document, right and wrong: no answer is a 500, and nothing foreign is in any."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cohort.store.tenants.tenants import Quotas
from tests.service.fine_tuning.test_journey import upload
from tests.service.hosting.running_service import RunningService, chat_rows

_SECRET = "zebra crossing nine"
_JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, "", "x", "auto", [], {}, [[]], [None], {"a": 1}, "\u0000", "\ud83d\ude00", 2**70,
    "9" * 400,
    "../../etc/passwd", "'; drop table jobs; --", "file-", "ft:base:a:b:c", ["a", 1], {"type": "dpo"},
)  # fmt: skip


class Requests:
    """Draws requests."""

    def __init__(self, document: dict[str, Any], *, ids: list[str], seed: int) -> None:
        self._chance, self._ids = random.Random(seed), ids
        self._operations = [
            (method, path, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
            if path not in ("/metrics", "/ready", "/health")
        ]

    def drawn(self) -> tuple[str, str, dict[str, Any]]:
        """Return method, path with query, and what else httpx is given."""
        chance = self._chance
        method, path, operation = chance.choice(self._operations)
        for name in [part[1:-1].partition(":")[0] for part in path.split("/") if part.startswith("{")]:
            given = str(chance.choice([*self._ids, *self._ids, "cancel", "events", "7", "\u00fc/x", "%00", "a" * 300]))
            whole = next(part for part in path.split("/") if part[1:-1].partition(":")[0] == name)
            path = path.replace(whole, httpx.QueryParams({"q": given})["q"].replace("/", "%2F") or "x", 1)
        query = {
            own["name"]: self._text(own["schema"])
            for own in operation.get("parameters", ())
            if own["in"] == "query" and chance.random() < 0.5
        }
        options: dict[str, Any] = {"params": query} if query else {}
        content = operation.get("requestBody", {}).get("content", {})
        if "application/json" in content:
            options["content"] = self._body(content["application/json"]["schema"])
        elif "multipart/form-data" in content:
            rows = chance.choice([b"", b"\x00\xff", chat_rows(2), b'{"messages": 1}\n'])
            options["files"] = {"file": (chance.choice(["rows.jsonl", "x", "\u00fc.jsonl"]), rows)}
            options["data"] = {"purpose": chance.choice(["fine-tune", "batch", "", "x"])}
        return method.upper(), path, options

    def _text(self, schema: dict[str, Any]) -> str:
        value = self._value(schema) if self._chance.random() < 0.6 else self._chance.choice(_JUNK)
        return str(value)[:300].replace("\u0000", "")

    def _body(self, schema: dict[str, Any]) -> bytes:
        chance = self._chance
        body = self._value(schema)
        if isinstance(body, dict):
            for name in list(body):
                if chance.random() < 0.15:
                    body[name] = chance.choice(_JUNK)
            if chance.random() < 0.1:
                body["unknown"] = 1
            # what takes minutes on a processor is no test of the edge
            for name, most in (("n", 2), ("max_tokens", 4), ("max_completion_tokens", 4)):
                if isinstance(body.get(name), int):
                    body[name] = min(body[name], most)
            if "prompt" in body or "messages" in body:
                body.setdefault("max_tokens", 2)
        data = json.dumps(body).encode()
        return data[: chance.randrange(len(data) + 1)] if chance.random() < 0.1 else data

    def _value(self, schema: dict[str, Any], *, depth: int = 0) -> Any:
        chance = self._chance
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return chance.choice(schema["enum"])
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._value(chance.choice(schema[key]), depth=depth)
        kind = schema.get("type")
        if kind == "object" and depth < 5:
            required = schema.get("required", ())
            return {
                name: self._value(own, depth=depth + 1)
                for name, own in schema.get("properties", {}).items()
                if name in required or chance.random() < 0.4
            }
        if kind == "array":
            return [self._value(schema.get("items", {}), depth=depth + 1) for _ in range(chance.randrange(3))]
        if kind == "integer":
            return chance.choice([schema.get("minimum", 0), schema.get("maximum", 5), chance.randrange(4)])
        if kind == "number":
            return chance.choice([0.0, 0.5, 1.0, 3.5])
        if kind == "boolean":
            return chance.random() < 0.5
        if kind == "string":
            return chance.choice([*self._ids, "base", "base", "a", "auto", ""])
        return chance.choice(_JUNK)


@pytest.fixture(scope="module")
def drawn_from(service: RunningService) -> Iterator[tuple[httpx.Client, dict[str, Any], list[str]]]:
    """Yield a client of one tenant, the document, and ids: its own, and those of another."""
    owner = service.client(service.tenant("zebra owner"))
    foreign = upload(owner, json.dumps({"messages": [{"role": "user", "content": _SECRET}]}).encode())
    small = Quotas(max_open_jobs=2, max_stored_bytes=500_000)
    key = service.tenant("random", quotas=small)
    own = upload(service.client(key), chat_rows(4))
    with httpx.Client(base_url=service.url, headers={"authorization": f"Bearer {key}"}, timeout=120) as client:
        document = client.get("/openapi.json").json()
        yield client, document, [own, own, foreign, "base"]
        jobs = client.get("/v1/fine_tuning/jobs?limit=100").json()["data"]
        jobs += client.get("/v1/cohort/tasks?limit=100").json()["data"]
        for job in jobs:
            client.post(f"/v1/cohort/tasks/{job['id']}/cancel")


def send(found: tuple[httpx.Client, dict[str, Any], list[str]], *, count: int, seed: int) -> None:
    client, document, ids = found
    requests = Requests(document, ids=ids, seed=seed)
    statuses: dict[int, int] = {}
    for _ in range(count):
        method, path, options = requests.drawn()
        try:
            answer = client.request(method, path, **options)
        except (httpx.InvalidURL, UnicodeError):
            # what no client can send
            continue
        told = (method, path, options, answer.status_code, answer.text[:500])
        assert answer.status_code < 500, told
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        assert _SECRET not in answer.text, told
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}, told
            assert "/nodes/" not in answer.text, told
    assert len(statuses) > 2, statuses


def test_the_document_has_every_call(service: RunningService) -> None:
    paths = httpx.get(f"{service.url}/openapi.json").json()["paths"]
    calls = {(method, path) for path, methods in paths.items() for method in methods}
    assert {
        ("post", "/v1/files"),
        ("get", "/v1/files/{file_id}/content"),
        ("post", "/v1/fine_tuning/jobs"),
        ("get", "/v1/fine_tuning/jobs/{job_id}/checkpoints"),
        ("delete", "/v1/models/{model_id}"),
        ("post", "/v1/chat/completions"),
        ("post", "/v1/cohort/plan"),
        ("post", "/v1/cohort/tasks/{task_id}/trials/{trial}/{action}"),
    } <= calls


def test_a_hundred_random_requests(drawn_from: tuple[httpx.Client, dict[str, Any], list[str]]) -> None:
    send(drawn_from, count=100, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_thousand_random_requests(drawn_from: tuple[httpx.Client, dict[str, Any], list[str]], seed: int) -> None:
    send(drawn_from, count=2000, seed=seed)
