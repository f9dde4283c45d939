"""An endpoint whose answers come from trials that train, asked as a program of OpenAI's API asks."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from cohort.metrics.rewards.model_endpoint import Asked, ModelEndpoint


@pytest.fixture
def endpoint() -> Iterator[ModelEndpoint]:
    made = ModelEndpoint()
    yield made
    made.close()


def ask(endpoint: ModelEndpoint, **body: Any) -> str:
    request = urllib.request.Request(
        f"{endpoint.base_url}/chat/completions", data=json.dumps(body).encode(), method="POST"
    )
    with urllib.request.urlopen(request, timeout=20) as response:
        text: str = response.read().decode()
    return text


def test_a_request_waits_for_its_answer_and_calls_of_tools_are_told_apart(endpoint: ModelEndpoint) -> None:
    model, live = endpoint.open("7")
    found: list[str] = []
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "2+2?"}]
    body = {"model": model, "messages": [{"role": "user", "content": parts}], "tools": [{"type": "function"}]}
    program = threading.Thread(target=lambda: found.append(ask(endpoint, **body)))
    program.start()
    asked = live.events.get(timeout=20)
    assert asked == Asked(messages=({"role": "user", "content": "What is 2+2?"},), tools=({"type": "function"},))
    live.answers.put('I ask. <tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>')
    program.join(20)
    (choice,) = json.loads(found[0])["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I ask."
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 2}'}
    live.answers.put("<tool_call>{no JSON}</tool_call>")
    (choice,) = json.loads(ask(endpoint, **body))["choices"]
    assert choice["message"] == {"role": "assistant", "content": "<tool_call>{no JSON}</tool_call>"}


def test_a_streamed_answer_is_one_piece(endpoint: ModelEndpoint) -> None:
    model, live = endpoint.open("1")
    live.answers.put("4")
    lines = ask(endpoint, model=model, messages=[], stream=True).split("\n\n")
    first = json.loads(lines[0].removeprefix("data: "))
    assert first["choices"][0]["delta"]["content"] == "4"
    assert lines[2] == "data: [DONE]"


def test_what_was_given_up_or_never_begun_is_an_error(endpoint: ModelEndpoint) -> None:
    model, _ = endpoint.open("1")
    endpoint.forget("1")
    for name in (model, "other"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(endpoint, model=name, messages=[])
        assert caught.value.code == 404
        caught.value.close()
