"""OpenAI's client, unmodified, and what the answers should be: those of one-at-a-time generation."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_format import rank_rows_from_peft, read_adapter
from cohort.data.tokenise import encode_prompt
from cohort.models.tokenizer import load_tokenizer
from cohort.models.weights import load_decoder
from cohort.service import completion_answers
from cohort.service.streamed_answer import StreamedAnswer
from cohort.serving.generate import GenerateRequest, end_of_answer_ids, generate
from cohort.serving.step_output import StepOutput
from tests.service.running_server import RunningServer

MODELS = ("base", "a0", "a1", "a2")
PROMPTS = ("1+1=", "the quick brown fox jumps over", "7")


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[tuple[str, str], str]:
    """The greedy answers, by the generator that has no server."""
    decoder, tokenizer = load_decoder(model), load_tokenizer(model)
    layout = AdapterLayout(decoder.linears)
    found = {}
    for name in MODELS:
        bank = AdapterBank(layout, num_slots=1, num_rank_rows=16)
        slot = None
        if name != "base":
            stored = read_adapter(model.parent / "adapters" / name)
            slot = bank.insert(stored.spec, AdapterState(weights=rank_rows_from_peft(layout, stored)))
        for prompt in PROMPTS:
            tokens = encode_prompt(prompt, tokenizer=tokenizer, is_chat=False)
            request = GenerateRequest(prompt_tokens=tokens, max_new_tokens=12, slot=slot)
            stops = end_of_answer_ids(tokenizer, decoder.config.eos_token_ids)
            (answer,) = generate(decoder, [request], lora_for=bank.context, num_slots=1, stop_ids=stops)
            found[name, prompt] = tokenizer.decode(answer, skip_special_tokens=True)
    return found


@pytest.fixture
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_answers_are_those_of_each_adapter_alone(server: RunningServer, expected: dict[tuple[str, str], str]) -> None:
    asked = [(name, prompt) for name in MODELS for prompt in PROMPTS] * 3
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda each: server.complete(*each), asked))
    assert answers == [expected[each] for each in asked]
    assert len(set(expected.values())) > 6, "equal answers would hide a mix-up"
    server.assert_nothing_is_held()


def test_models_lists_the_base_and_its_adapters(client: openai.OpenAI) -> None:
    assert [entry.id for entry in client.models.list()] == list(MODELS)


@pytest.mark.parametrize("name", ["base", "a1"])
def test_a_stream_adds_up_to_the_whole_answer(
    client: openai.OpenAI, expected: dict[tuple[str, str], str], name: str
) -> None:
    stream = client.completions.create(
        model=name, prompt=PROMPTS[1], max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    pieces = list(stream)
    assert "".join(piece.choices[0].text for piece in pieces[:-1]) == expected[name, PROMPTS[1]]
    assert pieces[-2].choices[0].finish_reason in ("stop", "length")
    usage = pieces[-1].usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 12


def test_with_many_streams_tokens_are_written_together(
    server: RunningServer, expected: dict[tuple[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [completion_answers._gathering_seconds(count) for count in (1, 31, 100, 5000)] == [0.0, 0.0, 0.02, 0.05]
    thread, has_come, may_go_on = server.opened.thread, threading.Event(), threading.Semaphore(0)
    deliver, events_of = thread._deliver, StreamedAnswer.events

    class Gathering:
        """asyncio, with a sleep that ends once all tokens are there: a busy machine takes its time for each."""

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def sleep(self, seconds: float) -> None:
            assert seconds == 0.2
            while thread.num_open:
                await asyncio.sleep(0.01)

    def deliver_and_wait(outputs: Sequence[StepOutput]) -> None:
        deliver(outputs)
        assert has_come.is_set() or may_go_on.acquire(timeout=60)

    def made_events(answer: StreamedAnswer, arrived: list[tuple[int, StepOutput]]) -> bytes:
        made = events_of(answer, arrived)
        # a part of a character is no text yet; of the first text the client hears before there is more
        if not made:
            may_go_on.release()
        return made

    monkeypatch.setattr(completion_answers, "_gathering_seconds", lambda _: 0.2)
    monkeypatch.setattr(completion_answers, "asyncio", Gathering())
    monkeypatch.setattr(thread, "_deliver", deliver_and_wait)
    monkeypatch.setattr(StreamedAnswer, "events", made_events)
    body = {"model": "a1", "prompt": PROMPTS[1], "max_tokens": 12, "temperature": 0, "stream": True}
    writes = []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as response:
        for write in response.iter_raw():
            writes.append(write.decode())
            has_come.set()
            may_go_on.release()
    events = [json.loads(line[6:]) for line in "".join(writes).splitlines() if line.startswith('data: {"')]
    assert "".join(event["choices"][0]["text"] for event in events) == expected["a1", PROMPTS[1]]
    # the first token comes by itself, and what came together is one event
    assert writes[0].count("data: ") == 1
    # the engine has given up its place before it hands the last one on, which may come alone
    assert len(events) <= len(writes) <= 3
    server.assert_nothing_is_held()


def test_chat_streamed_and_whole(client: openai.OpenAI) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1="}]
    settings = {"model": "a1", "messages": messages, "max_completion_tokens": 9, "temperature": 0}
    whole = client.chat.completions.create(**settings)  # type: ignore[call-overload]
    pieces = list(client.chat.completions.create(**settings, stream=True))  # type: ignore[call-overload]
    assert pieces[0].choices[0].delta.role == "assistant"
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole.choices[0].message.content
    assert whole.choices[0].message.role == "assistant"
    assert whole.usage.completion_tokens <= 9
    parts = [{"role": "user", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "1="}]}]
    again = client.chat.completions.create(**{**settings, "messages": [messages[0], *parts]})  # type: ignore[call-overload]
    assert again.choices[0].message.content == whole.choices[0].message.content


def test_several_prompts_choices_seeds_and_logprobs(client: openai.OpenAI) -> None:
    settings = {"model": "a0", "prompt": list(PROMPTS), "n": 2, "max_tokens": 5, "seed": 3, "logprobs": 2}
    first = client.completions.create(**settings)  # type: ignore[call-overload]
    again = client.completions.create(**settings)  # type: ignore[call-overload]
    assert [choice.index for choice in first.choices] == list(range(6))
    assert [choice.text for choice in first.choices] == [choice.text for choice in again.choices]
    assert len({choice.text for choice in first.choices}) > 3
    logprobs = first.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs)
    assert all(value < 0 for value in logprobs.token_logprobs)
    assert all(len(top) <= 2 for top in logprobs.top_logprobs)


def test_chat_logprobs_name_the_likeliest_tokens(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="base",
        messages=[{"role": "user", "content": "2"}],
        max_tokens=3,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    for entry in logprobs.content or ():
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob)
        assert len(entry.top_logprobs) == 3


def test_stop_strings_token_prompts_and_ignored_ends(
    server: RunningServer, expected: dict[tuple[str, str], str], model: Path
) -> None:
    whole = expected["a2", PROMPTS[1]]
    stop = whole[3:5]
    assert server.complete("a2", PROMPTS[1], stop=[stop]) == whole[: whole.index(stop)]
    tokens = encode_prompt(PROMPTS[1], tokenizer=load_tokenizer(model), is_chat=False)
    assert server.complete("a2", tokens) == whole
    assert server.complete("a2", [tokens]) == whole
    body = {"model": "a2", "prompt": "1", "max_tokens": 40, "ignore_eos": True, "temperature": 0}
    assert server.post("/v1/completions", body).json()["usage"]["completion_tokens"] == 40


def test_health_and_metrics(server: RunningServer) -> None:
    assert httpx.get(f"{server.url}/health").status_code == 200
    server.complete("a0", "1")
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    assert values['cohort:adapters_registered{model_name="tiny"}'] >= 3
    assert values['vllm:generation_tokens_total{model_name="tiny"}'] >= 1
    assert values['vllm:time_to_first_token_seconds_count{model_name="tiny"}'] >= 1


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/completions", {"model": "nobody", "prompt": "1"}, 404, "no adapter is named 'nobody'"),
        ("/v1/completions", {"model": "nobody", "prompt": "1"}, 404, "the base model: base"),
        ("/v1/completions", {"model": "base"}, 400, "prompt: found nothing"),
        ("/v1/completions", {"model": "base", "prompt": ""}, 400, "found 0 tokens"),
        ("/v1/completions", {"model": "base", "prompt": []}, 400, "found 0 prompts"),
        ("/v1/completions", {"model": "base", "prompt": "1" * 5000}, 400, "the model's context is"),
        ("/v1/completions", {"model": "base", "prompt": [99999]}, 400, "found token 99999"),
        ("/v1/completions", {"model": "base", "prompt": "1", "n": 99}, 400, "1 to 16 answers"),
        ("/v1/completions", {"model": "base", "prompt": "1", "temprature": 1}, 400, "Did you mean temperature?"),
        ("/v1/completions", {"model": "base", "prompt": "1", "temperature": -1}, 400, "at least 0"),
        ("/v1/completions", {"model": "base", "prompt": "1", "max_tokens": "5"}, 400, "a whole number"),
        ("/v1/completions", {"model": "base", "prompt": "12", "max_tokens": 384}, 400, "have at most 384 tokens"),
        ("/v1/completions", {"model": "base", "prompt": "1", "echo": True}, 400, "echo"),
        ("/v1/chat/completions", {"model": "base", "messages": []}, 400, "at least one entry"),
        ("/v1/chat/completions", {"model": "base", "messages": [{"role": "x", "content": ""}]}, 400, "role"),
        ("/v1/nothing", {}, 404, "Not Found"),
    ],
)
def test_wrong_requests_say_what_is_wrong(
    server: RunningServer, path: str, body: dict[str, object], status: int, words: str
) -> None:
    response = server.post(path, body)
    assert response.status_code == status
    error = response.json()["error"]
    assert words in error["message"]
    assert error["code"] == status


def test_openai_clients_get_their_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="nobody", prompt="1")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="base", prompt="1", temperature=-1)


def test_a_body_that_is_too_large_is_not_read(server: RunningServer) -> None:
    response = server.post("/v1/completions", {"model": "base", "prompt": "1" * 300_000})
    assert response.status_code == 413

    def endless() -> list[bytes]:
        return [b"x" * 10_000] * 30

    response = httpx.post(f"{server.url}/v1/completions", content=iter(endless()), timeout=120)
    assert response.status_code == 413
    assert "200000" in response.json()["error"]["message"]


def test_deeply_nested_json_is_refused(server: RunningServer) -> None:
    response = httpx.post(f"{server.url}/v1/completions", content=b"[" * 100_000, timeout=120)
    assert response.status_code == 400
    assert json.loads(response.text)["error"]["type"] == "invalid_request_error"
