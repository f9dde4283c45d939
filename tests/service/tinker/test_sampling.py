"""What is sampled ends where it should, and has the log-probabilities that training says."""

from __future__ import annotations

import math

import numpy as np

from tests.service.tinker.tinker_calls import TinkerCalls, read_samples
from tests.service.tinker.trained_models import TOKENS, trained


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


def test_a_part_of_a_prompts_log_probabilities_is_refused(client: TinkerCalls) -> None:
    body = {"session_id": client.session_id, "sampling_session_seq_id": 70, "base_model": "base"}
    asked = {
        "sampling_session_id": client.done("create_sampling_session", body)["sampling_session_id"],
        "seq_id": 1,
        "prompt": {"chunks": [{"tokens": TOKENS}]},
        "prompt_logprobs_last_n": 2,
    }
    refused = client.post("asample", asked)
    assert refused.status_code == 400
    assert "Leave prompt_logprobs_last_n out" in refused.json()["detail"]


def test_wrong_prompts_are_refused(client: TinkerCalls) -> None:
    body = {"session_id": client.session_id, "sampling_session_seq_id": 71, "base_model": "base"}
    sampler_id = client.done("create_sampling_session", body)["sampling_session_id"]
    for chunk, words in (
        (
            {"type": "image", "data": "", "format": "png"},
            "prompt: found a chunk of another type; allowed: encoded_text",
        ),
        ({"tokens": [10**6]}, "1000000"),
        ({"tokens": []}, "prompt"),
        ({"tokens": [1] * 384}, "384"),
    ):
        refused = client.post(
            "asample", {"sampling_session_id": sampler_id, "seq_id": 1, "prompt": {"chunks": [chunk]}}
        )
        assert refused.status_code == 400, chunk
        assert words in refused.json()["detail"]
    unknown = client.post("create_sampling_session", {**body, "sampling_session_seq_id": 72, "base_model": "other"})
    assert unknown.status_code == 400
    assert "base_model: found 'other'; allowed: base" in unknown.json()["detail"]
