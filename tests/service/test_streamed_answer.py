"""The events of a stream: what came together is one event, failures are told once, and the end says what was asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cohort.service.answers import AnswerFormat
from cohort.service.streamed_answer import StreamedAnswer, failure_of
from cohort.serving.step_output import FinishReason, StepOutput, TokenLogprobs


def answer(*, num_choices: int = 1, is_chat: bool = False, with_usage: bool = False, logprobs: bool = False) -> Any:
    form = AnswerFormat(model="m", is_chat=is_chat, with_logprobs=logprobs, token_text=str)
    return StreamedAnswer(form, num_choices=num_choices, num_prompt_tokens=3, with_usage=with_usage)


def read(events: bytes) -> list[Any]:
    lines = [line for line in events.decode().split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


def token(text: str, **more: Any) -> StepOutput:
    return StepOutput(number=0, token=5, text=text, **more)


def test_what_came_together_is_one_event_of_each_choice() -> None:
    own = answer(num_choices=2)
    arrived = [(0, token("a")), (1, token("x")), (0, token("b")), (0, token("c"))]
    found = read(own.events(arrived))
    assert [(event["choices"][0]["index"], event["choices"][0]["text"]) for event in found] == [(0, "abc"), (1, "x")]
    assert (own.num_tokens, own.is_done) == (4, False)


def test_logarithms_are_told_token_by_token() -> None:
    logprobs = TokenLogprobs(picked=-1.0, top=())
    own = answer(logprobs=True)
    found = read(own.events([(0, token("a", logprobs=logprobs)), (0, token("b", logprobs=logprobs))]))
    assert [event["choices"][0]["text"] for event in found] == ["a", "b"]


def test_it_is_done_with_the_last_choice_and_says_what_was_used() -> None:
    own = answer(num_choices=2, with_usage=True)
    ended = token("", finish=FinishReason.LENGTH)
    assert len(read(own.events([(0, ended)]))) == 1
    assert not own.is_done
    *_, usage, done = read(own.events([(1, ended)]))
    assert own.is_done
    assert (usage["usage"], done) == ({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}, "[DONE]")


def test_nothing_to_show_is_no_event() -> None:
    assert answer().events([(0, token(""))]) == b""
    assert answer().opening() == b""


def test_a_chat_opens_each_choice_with_its_role() -> None:
    opened = read(answer(num_choices=2, is_chat=True).opening())
    assert [event["choices"][0]["delta"]["role"] for event in opened] == ["assistant", "assistant"]


@pytest.mark.parametrize("finish", [FinishReason.FAILED, FinishReason.NOT_FINITE])
def test_a_failure_ends_the_stream_behind_what_came_before_it(finish: FinishReason) -> None:
    own = answer(num_choices=2, with_usage=True)
    failed = StepOutput(number=0, token=None, finish=finish)
    shown, error = read(own.events([(0, token("a")), (0, failed)]))
    assert shown["choices"][0]["text"] == "a"
    assert error["error"]["message"] == failure_of(failed)
    assert error["error"]["code"] == 500
    assert own.is_done
