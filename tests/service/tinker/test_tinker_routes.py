"""Calls that come twice, at once, in pieces or wrong: each is carried out once, and the server is well."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.service.running_server import RunningServer
from tests.service.tinker.tinker_calls import TinkerCalls, pass_message
from tests.service.tinker.trained_models import data, trained


def test_hello(client: TinkerCalls) -> None:
    assert client.done("client/config", {"sdk_version": "0.38.0"}) == {}
    (model,) = client.get("get_server_capabilities")["supported_models"]
    assert model == {"model_name": "base", "max_context_length": 384, "trainable": True, "sampleable": True}
    assert client.get("healthz") == {"status": "ok"}
    client.done("session_heartbeat", {"session_id": client.session_id})
    assert client.post("session_heartbeat", {"session_id": "gone"}).status_code == 410
    assert client.session_id in client.get("sessions")["sessions"]


def test_a_repeated_call_is_carried_out_once(client: TinkerCalls) -> None:
    model_id = client.model(rank=4)
    body = pass_message(model_id, 1, data())
    first = client.result("forward_backward", body)
    assert client.result("forward_backward", body) == first
    step = {"model_id": model_id, "seq_id": 2, "adam_params": {}}
    assert client.result("optim_step", step) == client.result("optim_step", step)
    other = client.post("forward_backward", pass_message(model_id, 1, data(5)))
    assert other.status_code == 400
    assert "used with another body" in other.json()["detail"]


def test_samples_are_cancelled_and_calls_of_models_are_carried_out(client: TinkerCalls) -> None:
    model_id = client.model(rank=4)
    request_id = client.done("forward_backward", pass_message(model_id, 1, data()))["request_id"]
    client.done("cancel_future", {"request_id": request_id})
    assert isinstance(client.retrieve(request_id), bytes)
    version = {"model_id": model_id, "seq_id": 2, "sampling_session_seq_id": 0}
    sampler = client.result("save_weights_for_sampler", version)["sampling_session_id"]
    ask = {"sampling_session_id": sampler, "seq_id": 1, "prompt": {"chunks": [{"tokens": [5]}]}}
    request_id = client.done("asample", ask)["request_id"]
    client.done("cancel_future", {"request_id": request_id})
    assert client.post("retrieve_future", {"request_id": request_id}).status_code == 410


def test_clients_at_once_have_the_losses_that_each_has_alone(tinker_server: RunningServer) -> None:
    def run(seed: int) -> list[float]:
        with TinkerCalls(tinker_server.url) as own:
            own.begin()
            return trained(own, own.model(rank=4 * (1 + seed % 3), seed=seed), steps=3, seed=seed)

    alone = [run(seed) for seed in range(5)]
    with ThreadPoolExecutor(5) as threads:
        assert list(threads.map(run, range(5))) == alone


def test_malformed_calls_are_refused_and_the_server_is_well(client: TinkerCalls) -> None:
    chance = random.Random(1)
    paths = (
        *("create_session", "create_model", "forward_backward", "optim_step", "save_weights", "asample", "get_info"),
        *("save_weights_for_sampler", "load_weights", "retrieve_future", "create_sampling_session", "weights_info"),
    )
    model_id, other = client.model(rank=4), client.model(1, rank=4)
    whole = pass_message(other, 1, data())
    values: tuple[Any, ...] = (None, -1, 1e308, "", [], {}, "\u0000", 2**70, [{}], True)
    keys = ("session_id", "model_id", "seq_id", "path", "adam_params", "prompt", "request_id", "model_seq_id", "rank")
    for _ in range(150):
        path = chance.choice(paths)
        body: dict[str, Any] = {chance.choice(keys): chance.choice(values) for _ in range(chance.randrange(1, 5))}
        content = json.dumps(body).encode()
        if path == "forward_backward":
            changed = bytearray(whole)
            for _ in range(chance.randrange(1, 8)):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            content = bytes(changed[: chance.randrange(len(changed))])
        elif chance.random() < 0.3:
            content = content[: chance.randrange(len(content))]
        response = client.post(path, content)
        # what is left of a message may be a message, whose answer then says what is wrong with it
        may_be_right = path in ("create_session", "forward_backward") and response.status_code == 200
        assert may_be_right or 400 <= response.status_code < 500, (path, content, response.text)
    assert trained(client, model_id, steps=1)
