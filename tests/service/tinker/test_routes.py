"""A client trains, samples, saves and goes on; wrong calls are refused in its terms and move nobody else."""

from __future__ import annotations

import json
import math
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from cohort.adapters.peft_files.peft_format import read_adapter
from tests.service.running_server import RunningServer
from tests.service.tinker.tinker_calls import TinkerCalls, pass_message, read_samples

TOKENS = [5, 9, 13, 7, 21, 4, 17]


def data(seed: int = 0, count: int = 2) -> list[tuple[list[int], dict[str, Any]]]:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(3, 60, size=9).tolist() for _ in range(count)]
    return [(row[:-1], {"target_tokens": row[1:], "weights": [1.0] * 8}) for row in rows]


def trained(client: TinkerCalls, model_id: str, *, first: int = 1, steps: int = 3, seed: int = 0) -> list[float]:
    """Return the losses of some steps."""
    losses = []
    for step in range(steps):
        metrics, _ = client.train(model_id, first + 2 * step, data(seed))
        losses.append(metrics["loss:sum"])
        assert math.isfinite(client.step(model_id, first + 2 * step + 1)["metrics"]["unclipped_grad_l2:mean"])
    return losses


def test_hello(client: TinkerCalls) -> None:
    assert client.done("client/config", {"sdk_version": "0.38.0"}) == {}
    (model,) = client.get("get_server_capabilities")["supported_models"]
    assert model == {"model_name": "base", "max_context_length": 384, "trainable": True, "sampleable": True}
    assert client.get("healthz") == {"status": "ok"}
    client.done("session_heartbeat", {"session_id": client.session_id})
    assert client.post("session_heartbeat", {"session_id": "gone"}).status_code == 410
    assert client.session_id in client.get("sessions")["sessions"]


def test_a_model_learns_and_its_version_does_not_change_under_a_reader(client: TinkerCalls) -> None:
    model_id = client.model(rank=8)
    losses = trained(client, model_id, steps=4)
    assert losses[-1] < losses[0]
    saved = client.result("save_weights_for_sampler", {"model_id": model_id, "seq_id": 9, "sampling_session_seq_id": 0})
    ask = {
        "sampling_session_id": saved["sampling_session_id"],
        "seq_id": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]},
        "sampling_params": {"max_tokens": 6, "temperature": 0.0, "stop": []},
        "num_samples": 2,
        "prompt_logprobs": True,
    }
    sequences, prompt = read_samples(client.result("asample", ask))
    (tokens, logprobs, reason), again = sequences
    assert (tokens, logprobs, reason) == again
    assert len(tokens) == 6
    assert reason == 1
    # what sampling and training say of the same tokens is the same
    row = [*TOKENS, *tokens]
    inputs = {"target_tokens": row[1:], "weights": [0.0] * (len(row) - 1)}
    _, (measured,) = client.train(model_id, 10, [(row[:-1], inputs)], forward_only=True)
    np.testing.assert_allclose([*prompt[1:], *logprobs], measured, atol=2e-5)
    assert math.isnan(prompt[0])
    trained(client, model_id, first=11, steps=2, seed=3)
    assert read_samples(client.result("asample", {**ask, "seq_id": 2}))[0][0] == again


def test_sampling_ends_with_the_token_or_text_that_stops_it(client: TinkerCalls) -> None:
    opened = client.done(
        "create_sampling_session",
        {"session_id": client.session_id, "sampling_session_seq_id": 7, "base_model": "base"},
    )
    ask = {
        "sampling_session_id": opened["sampling_session_id"],
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]},
        "sampling_params": {"max_tokens": 12, "temperature": 1.0, "seed": 5, "stop": []},
    }
    ((whole, logprobs, _),), _ = read_samples(client.result("asample", {**ask, "seq_id": 1}))
    ask["sampling_params"]["stop"] = [whole[3]]
    ((tokens, own, reason),), _ = read_samples(client.result("asample", {**ask, "seq_id": 2}))
    # the same draws, with the token that stops them
    first = whole.index(whole[3])
    assert (tokens, own, reason) == (whole[: first + 1], logprobs[: first + 1], 0)


def test_a_checkpoint_goes_on_with_the_same_bits_and_is_an_adapter(
    client: TinkerCalls, tinker_server: RunningServer
) -> None:
    model_id = client.model(rank=4, seed=3)
    trained(client, model_id, steps=2)
    path = client.result("save_weights", {"model_id": model_id, "seq_id": 5, "path": "two"})["path"]
    assert path == f"tinker://{model_id}/weights/two"
    loaded = client.result(
        "load_weights", {"session_id": client.session_id, "model_seq_id": 1, "path": path, "optimizer": True}
    )
    assert trained(client, model_id, first=6) == trained(client, loaded["model_id"], first=1)
    (saved,) = client.get(f"training_runs/{model_id}/checkpoints")["checkpoints"]
    assert (saved["tinker_path"], saved["checkpoint_type"]) == (path, "training")
    info = client.done("weights_info", {"tinker_path": path})
    assert (info["lora_rank"], info["base_model"]) == (4, "base")
    tinker = tinker_server.opened.tinker
    assert tinker is not None
    folder = tinker.routes._store.find(path).folder
    assert read_adapter(folder).spec.lora_alpha == 32.0
    run = client.get(f"training_runs/{model_id}")
    assert run["last_checkpoint"]["tinker_path"] == path
    assert client.put(f"training_runs/{model_id}/checkpoints/weights/two/ttl", {"ttl_seconds": 3600}) == 200
    assert client.delete(f"training_runs/{model_id}/checkpoints/weights/two") == 204
    assert client.post("weights_info", {"tinker_path": path}).status_code == 404


def test_a_sampler_of_a_saved_version_is_opened_by_its_path(client: TinkerCalls) -> None:
    model_id = client.model(rank=4)
    trained(client, model_id, steps=1)
    path = client.result("save_weights_for_sampler", {"model_id": model_id, "seq_id": 3, "path": "v1"})["path"]
    assert path == f"tinker://{model_id}/sampler_weights/v1"
    asked = {"session_id": client.session_id, "sampling_session_seq_id": 0, "model_path": path}
    sampler_id = client.done("create_sampling_session", asked)["sampling_session_id"]
    assert client.get(f"samplers/{sampler_id}")["model_path"] == path
    refused = client.result(
        "load_weights", {"session_id": client.session_id, "model_seq_id": 5, "path": path, "optimizer": False}
    )
    assert "is for sampling; allowed: a training checkpoint" in refused["error"]


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


def test_clients_at_once_have_the_losses_that_each_has_alone(tinker_server: RunningServer) -> None:
    def run(seed: int) -> list[float]:
        with TinkerCalls(tinker_server.url) as own:
            own.begin()
            return trained(own, own.model(rank=4 * (1 + seed % 3), seed=seed), steps=3, seed=seed)

    alone = [run(seed) for seed in range(5)]
    with ThreadPoolExecutor(5) as threads:
        assert list(threads.map(run, range(5))) == alone


@pytest.mark.parametrize(
    ("loss", "inputs", "words"),
    [
        ("nothing", {"weights": [1.0] * 6}, "loss_fn: found 'nothing'; allowed: cispo, cross_entropy"),
        ("cross_entropy", {"weights": [1.0] * 5}, "found shape [5] next to target_tokens of shape [6]"),
        ("cross_entropy", {"weights": [math.nan] * 6}, "loss_fn_inputs.weights: found nan at position 0"),
        ("ppo", {"weights": [1.0] * 6}, "no logprobs; allowed: target_tokens, logprobs, advantages"),
    ],
)
def test_a_wrong_pass_fails_in_its_turn_and_the_model_goes_on(
    client: TinkerCalls, loss: str, inputs: dict[str, Any], words: str
) -> None:
    model_id = client.model(rank=4)
    wrong = [(TOKENS[:-1], {"target_tokens": TOKENS[1:], **inputs})]
    found = client.result("forward_backward", pass_message(model_id, 1, wrong, loss=loss))
    assert found["category"] == "user"
    assert words in found["error"]
    assert trained(client, model_id, first=2, steps=1)


def test_wrong_models_are_refused(client: TinkerCalls) -> None:
    asked = {"session_id": client.session_id, "model_seq_id": 0, "base_model": "other"}
    for changed, words in (
        ({}, "base_model: found 'other'; allowed: base"),
        ({"base_model": "base", "lora_config": {"rank": 17}}, "lora_config.rank: found 17; allowed: 1 to 16"),
        ({"base_model": "base", "lora_config": {"rank": 0}}, "lora_config.rank"),
        ({"base_model": "base", "optimizer_config": {"type": "dimuon"}}, "optimizer_config.type: found 'dimuon'"),
    ):
        response = client.post("create_model", {**asked, **changed})
        assert response.status_code == 400
        assert words in response.json()["detail"]
    assert client.post("get_info", {"model_id": "foreign:train:0"}).status_code == 404


def test_a_session_that_ends_frees_what_it_held(client: TinkerCalls, tinker_server: RunningServer) -> None:
    model_id = client.model(rank=4)
    trained(client, model_id, steps=1)
    client.result("save_weights_for_sampler", {"model_id": model_id, "seq_id": 3, "sampling_session_seq_id": 0})
    client.result("save_weights", {"model_id": model_id, "seq_id": 4, "path": "kept"})
    client.done(f"sessions/{client.session_id}/finish", {"reason": {"type": "success"}})
    assert client.post("get_info", {"model_id": model_id}).status_code == 404
    assert not [each for each in tinker_server.opened.model.pool.statuses() if each.name.startswith(client.session_id)]
    client.begin()
    again = {"session_id": client.session_id, "model_seq_id": 0, "path": f"tinker://{model_id}/weights/kept"}
    assert "error" not in client.result("load_weights", {**again, "optimizer": True})


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
