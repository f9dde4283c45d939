"""Each malformed request is an error in the client's terms; the server is well, and other clients are unmoved."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cohort.service.settings import ServedSettings, ServerLimits, ServerSettings
from cohort.serving.adapter_pool_settings import AdapterPoolSettings
from tests.service.running_server import RunningServer, running
from tests.service.tinker.malformed import Malformed, Request
from tests.service.tinker.tinker_calls import TinkerCalls
from tests.service.tinker.trained_models import trained


@pytest.fixture(scope="module")
def guarded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    pool = AdapterPoolSettings(max_loras=4, max_lora_rank=16)
    tinker = tmp_path_factory.mktemp("guarded")
    settings = ServedSettings(model=str(model), names=("base",), gpus=0, pool=pool, tinker=tinker)
    limits = ServerLimits(max_body_bytes=200_000, max_prompts=16)
    with running(settings, ServerSettings(api_keys=("tml-kind", "tml-rough"), limits=limits)) as server:
        yield server


def kind_client(url: str, *, stop: threading.Event | None = None) -> list[Any]:
    """Train five steps, and more until ``stop`` is set; return the losses and the norms of the first five."""
    with TinkerCalls(url, **{"X-API-Key": "tml-kind"}) as calls:
        calls.begin()
        model_id = calls.model(rank=4, seed=7)
        losses: list[Any] = trained(calls, model_id, steps=5, seed=3)
        number = 11
        while stop is not None and not stop.wait(0.05):
            trained(calls, model_id, first=number, steps=1)
            number += 2
        calls.done(f"sessions/{calls.session_id}/finish", {})
        return losses


def send_malformed(url: str, *, count: int, seed: int) -> int:
    """Send requests and return how many were errors; each other one was changed at random and came out right."""
    with (
        TinkerCalls(url, **{"X-API-Key": "tml-kind"}) as kind,
        TinkerCalls(url, **{"X-API-Key": "tml-rough"}) as rough,
    ):
        kind.begin()
        rough.begin()
        known = kind.model(rank=4, seed=7)
        path = kind.result("save_weights", {"model_id": known, "seq_id": 1, "path": "kept"})["path"]
        version = {"model_id": known, "seq_id": 2, "sampling_session_seq_id": 0}
        sampler = kind.result("save_weights_for_sampler", version)["sampling_session_id"]
        foreign = {"session": kind.session_id, "model": known, "sampler": sampler, "checkpoint": path}
        numbers = itertools.count(1)
        model_id = rough.model(rank=4)
        drawn = Malformed(
            seed,
            model_id=model_id,
            rough_model_id=rough.model(1, rank=4),
            session_id=rough.session_id,
            foreign=foreign,
            next_number=lambda: next(numbers),
        )
        num_errors = 0
        for place in range(count):
            num_errors += is_refused(rough, drawn.draw(), place)
        # what the other client had is as it was
        trained(kind, known, first=3, steps=1)
        assert kind.get(f"training_runs/{known}/checkpoints")["checkpoints"]
        rough.begin()
        trained(rough, rough.model(rank=4), steps=1)
        for calls in (kind, rough):
            calls.done(f"sessions/{calls.session_id}/finish", {})
        return num_errors


def is_refused(calls: TinkerCalls, request: Request, place: int) -> bool:
    """Send a request, check what is answered, and return whether it was an error."""
    response = calls.send(request.method, request.path, request.content)
    found = response.text
    assert response.status_code < 500, (place, request, found)
    if response.status_code >= 400:
        assert response.headers["content-type"].startswith("application/json"), (place, request, found)
        # the key of the client is right, and each error says what is wrong
        assert len(found) > len('{"detail":""}'), (place, request)
        assert len(found) < 20_000, (place, request)
        return True
    if request.is_unheard:
        return False
    answer = response.json()
    if "request_id" in answer:
        answer = calls.retrieve(answer["request_id"])
    refused = not isinstance(answer, bytes) and answer.get("category") == "user"
    assert refused or request.may_be_right, (place, request, answer)
    return refused


def sent_and_unmoved(guarded: RunningServer, *, count: int, seed: int) -> None:
    alone = kind_client(guarded.url)
    stop = threading.Event()
    found: list[Any] = []
    beside = threading.Thread(target=lambda: found.append(kind_client(guarded.url, stop=stop)))
    beside.start()
    try:
        num_errors = send_malformed(guarded.url, count=count, seed=seed)
    finally:
        stop.set()
        beside.join()
    assert found == [alone]
    assert kind_client(guarded.url) == alone
    assert num_errors > 0.7 * count
    assert httpx.get(f"{guarded.url}/health").status_code == 200
    guarded.assert_nothing_is_held()


def test_malformed_requests_are_refused_and_others_are_unmoved(guarded: RunningServer) -> None:
    sent_and_unmoved(guarded, count=60, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_thousand_malformed_requests_are_refused_and_others_are_unmoved(guarded: RunningServer, seed: int) -> None:
    sent_and_unmoved(guarded, count=1000, seed=seed)
