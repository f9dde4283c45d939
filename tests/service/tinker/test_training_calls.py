"""Calls of a model: saved and gone on from, wrong ones refused in their turn."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from cohort.adapters.peft_files.peft_format import read_adapter
from cohort.engine.client_training.client_trainer import GAP_SECONDS
from cohort.service.tinker.protobuf_messages import _CLASSES
from tests.service.running_server import RunningServer
from tests.service.tinker.tinker_calls import TinkerCalls, pass_message
from tests.service.tinker.trained_models import TOKENS, data, trained


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
    folder = tinker.routes._store.find(path, asker="").folder
    assert read_adapter(folder).spec.lora_alpha == 32.0
    run = client.get(f"training_runs/{model_id}")
    assert run["last_checkpoint"]["tinker_path"] == path
    assert client.put(f"training_runs/{model_id}/checkpoints/weights/two/ttl", {"ttl_seconds": 3600}) == 200
    assert client.delete(f"training_runs/{model_id}/checkpoints/weights/two") == 204
    assert client.post("weights_info", {"tinker_path": path}).status_code == 404


@pytest.mark.parametrize(
    ("loss", "inputs", "words"),
    [
        ("nothing", {"weights": [1.0] * 6}, "loss_fn: found 'nothing'; allowed: cispo, cross_entropy"),
        ("cross_entropy", {"weights": [1.0] * 5}, "found shape [5] next to target_tokens of shape [6]"),
        ("cross_entropy", {"weights": [math.nan] * 6}, "loss_fn_inputs.weights: found nan at position 0"),
        ("ppo", {"weights": [1.0] * 6}, "no logprobs; allowed: target_tokens, logprobs, advantages"),
        (
            "ppo",
            {"logprobs": [-1.0] * 6, "advantages": [math.inf] + [1.0] * 5},
            "loss_fn_inputs.advantages: found inf at position 0",
        ),
        ("cross_entropy", {"target_tokens": [10**6] * 6, "weights": [1.0] * 6}, "target_tokens: found token 1000000"),
    ],
)
def test_a_wrong_pass_fails_in_its_turn_and_the_model_goes_on(
    client: TinkerCalls, loss: str, inputs: dict[str, Any], words: str
) -> None:
    model_id = client.model(rank=4)
    wrong: Any = [(TOKENS[:-1], {"target_tokens": TOKENS[1:], **inputs})]
    found = client.result("forward_backward", pass_message(model_id, 1, wrong, loss=loss))
    assert found["category"] == "user"
    assert words in found["error"]
    assert trained(client, model_id, first=2, steps=1)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([10**6, 1], "data[0].model_input: found token 1000000; allowed: 0 to"),
        ([-1, 1], "data[0].model_input: found token -1; allowed: 0 to"),
        ([1] * 385, "data[0].model_input: found 385 tokens; allowed: 1 to 384 tokens, which the model reads"),
    ],
)
def test_tokens_that_the_model_does_not_read_are_refused(client: TinkerCalls, tokens: list[int], words: str) -> None:
    model_id = client.model(rank=4)
    wrong = [(tokens, {"target_tokens": [1] * len(tokens), "weights": [1.0] * len(tokens)})]
    assert words in client.result("forward_backward", pass_message(model_id, 1, wrong))["error"]
    assert trained(client, model_id, first=2, steps=1)


def test_an_image_is_refused_and_its_number_is_used_up(client: TinkerCalls) -> None:
    model_id = client.model(rank=4)
    message = _CLASSES["ForwardBackwardRequest"](model_id=model_id, seq_id=1, loss_fn="cross_entropy")
    message.data.add().chunks.add().image = b"a picture"
    refused = client.post("forward_backward", message.SerializeToString())
    assert refused.status_code == 400
    assert "data[0].model_input: found an image; allowed: text" in refused.json()["detail"]
    begun = time.monotonic()
    assert trained(client, model_id, first=2, steps=1)
    assert time.monotonic() - begun < GAP_SECONDS / 2


def test_what_is_wrong_in_one_model_moves_no_other(client: TinkerCalls) -> None:
    def run(number: int, *, next_to_a_wrong_one: bool) -> list[Any]:
        model_id, found = client.model(2 * number, rank=4, seed=5), []
        other = client.model(2 * number + 1, rank=4)
        for step in range(2):
            found.append(client.train(model_id, 2 * step + 1, data())[0])
            if next_to_a_wrong_one:
                bad = [(TOKENS[:-1], {"target_tokens": TOKENS[1:], "weights": [math.nan] * 6})]
                sent = client.done("forward_backward", pass_message(other, 2 * step + 1, bad))
                client.step(other, 2 * step + 2)
                assert "found nan" in client.retrieve(sent["request_id"])["error"]
            found.append(client.step(model_id, 2 * step + 2))
        return found

    assert run(0, next_to_a_wrong_one=True) == run(1, next_to_a_wrong_one=False)


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


def test_a_norm_that_is_no_number_is_left_out(client: TinkerCalls) -> None:
    model_id = client.model(rank=4)
    # weights that grow a trillion times a step: soon passes have no finite gradients
    for number in range(1, 11, 2):
        client.train(model_id, number, data())
        found = client.step(model_id, number + 1, learning_rate=1e6, weight_decay=1e6)
    assert found == {"metrics": {}}


@pytest.mark.parametrize("name", ["learning_rate", "eps", "weight_decay", "grad_clip_norm"])
def test_a_number_of_a_step_that_would_overflow_is_refused(client: TinkerCalls, name: str) -> None:
    # the launch would fail with the steps of other clients in it
    model_id = client.model(rank=4)
    body = {"model_id": model_id, "seq_id": 1, "adam_params": {name: 1e38}}
    refused = client.post("optim_step", body)
    assert refused.status_code == 400
    assert name in refused.json()["detail"]


def test_a_call_whose_body_is_refused_holds_no_later_call_up(client: TinkerCalls) -> None:
    model_id = client.model(rank=4)
    step = {"model_id": model_id, "adam_params": {"learning_rate": 1e-2}}
    started = time.monotonic()
    assert client.post("optim_step", {**step, "seq_id": 1, "adam_params": {"beta1": 2}}).status_code == 400
    garbled = pass_message(model_id, 2, data()).replace(b"target_tokens", b"target_tok\xff\xfes")
    assert client.post("forward_backward", garbled).status_code == 400
    trained(client, model_id, first=3, steps=1)
    assert time.monotonic() - started < 20
    # the number of a refused call may come again, as long as no later call has run
    assert client.post("optim_step", {**step, "seq_id": 5, "adam_params": 1}).status_code == 400
    assert "metrics" in client.result("optim_step", {**step, "seq_id": 5})
    assert client.post("optim_step", {**step, "seq_id": 1}).status_code == 400


def test_saves_that_overlap_end_in_the_order_of_their_numbers(client: TinkerCalls) -> None:
    model_id = client.model(rank=4)
    numbers = iter(range(1, 100))
    asked = []
    for overwrite in (False, False, True, True):
        trained_step = {"model_id": model_id, "seq_id": next(numbers), "adam_params": {}}
        client.done("optim_step", trained_step)
        body = {"model_id": model_id, "seq_id": next(numbers), "path": "same", "overwrite": overwrite}
        asked.append(client.done("save_weights", body)["request_id"])
    # it is loaded before the client has heard that it was saved
    into = {"model_id": model_id, "seq_id": next(numbers), "path": f"tinker://{model_id}/weights/same"}
    loaded = client.done("load_weights", {**into, "optimizer": True})["request_id"]
    found = [client.retrieve(request_id) for request_id in asked]
    assert ["error" in each for each in found] == [False, True, False, False]
    assert "found same, which exists" in found[1]["error"]
    assert "error" not in client.retrieve(loaded)
    assert client.result("optim_step", {"model_id": model_id, "seq_id": next(numbers), "adam_params": {}})
    assert client.get(f"training_runs/{model_id}")["last_checkpoint"]["tinker_path"].endswith("/same")
