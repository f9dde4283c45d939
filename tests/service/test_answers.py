"""The bodies of answers have OpenAI's form: whole and in pieces, as text and as chat, with and without logarithms."""

from __future__ import annotations

import json

from cohort.service.answers import AnswerFormat, Choice, error_body, stream_event
from cohort.serving.step_output import FinishReason, StepOutput, TokenLogprobs

TEXTS = {1: "Hi", 2: " é"}
OUTPUTS = (
    StepOutput(number=0, token=1, text="Hi", logprobs=TokenLogprobs(picked=-0.5, top=((1, -0.5), (2, -1.0)))),
    StepOutput(number=0, token=2, text=" é", logprobs=TokenLogprobs(picked=-0.25, top=((2, -0.25),))),
    StepOutput(number=0, token=None, finish=FinishReason.STOP),
)


def bodies(*, is_chat: bool, with_logprobs: bool) -> AnswerFormat:
    return AnswerFormat(model="m", is_chat=is_chat, with_logprobs=with_logprobs, token_text=TEXTS.__getitem__)


def choice() -> Choice:
    found = Choice()
    for output in OUTPUTS:
        found.add(output)
    return found


def test_a_whole_completion() -> None:
    body = bodies(is_chat=False, with_logprobs=True).whole([choice(), Choice()], num_prompt_tokens=3)
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    first = body["choices"][0]
    assert (first["index"], first["text"], first["finish_reason"]) == (0, "Hi é", "stop")
    assert first["logprobs"] == {
        "tokens": ["Hi", " é"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{"Hi": -0.5, " é": -1.0}, {" é": -0.25}],
        "text_offset": [0, 2],
    }
    assert body["choices"][1]["index"] == 1
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_a_whole_chat() -> None:
    body = bodies(is_chat=True, with_logprobs=True).whole([choice()], num_prompt_tokens=3)
    assert body["object"] == "chat.completion"
    first = body["choices"][0]
    assert first["message"] == {"role": "assistant", "content": "Hi é", "refusal": None}
    second = first["logprobs"]["content"][1]
    assert (second["token"], second["bytes"]) == (" é", list(" é".encode()))
    assert [top["token"] for top in second["top_logprobs"]] == [" é"]


def test_pieces_of_a_chat_add_up_to_it() -> None:
    form = bodies(is_chat=True, with_logprobs=False)
    pieces = [form.first_piece(0), *(form.piece(0, output) for output in OUTPUTS)]
    found = [piece for piece in pieces if piece is not None]
    assert len(found) == len(pieces)
    assert "".join(piece["choices"][0]["delta"].get("content", "") for piece in found) == "Hi é"
    assert [piece["choices"][0]["finish_reason"] for piece in found] == [None, None, None, "stop"]
    # all pieces are of one answer
    assert len({(piece["id"], piece["created"], piece["object"]) for piece in found}) == 1
    last = form.usage_piece(2, num_prompt_tokens=1)
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 3)


def test_a_piece_without_anything_to_show_is_left_out() -> None:
    form = bodies(is_chat=False, with_logprobs=False)
    assert form.first_piece(0) is None
    # half of a character is no text yet
    assert form.piece(0, StepOutput(number=0, token=7)) is None


def test_events_and_errors() -> None:
    assert stream_event("[DONE]") == b"data: [DONE]\n\n"
    body = error_body("no", kind="invalid_request_error", code=400)
    assert json.loads(stream_event(body).removeprefix(b"data: ")) == body
    assert stream_event({"text": "é"}) == 'data: {"text": "é"}\n\n'.encode()
