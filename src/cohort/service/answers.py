"""OpenAI's response bodies: completions and chat completions, whole or as pieces of a stream."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cohort.serving.step_output import StepOutput, TokenLogprobs

__all__ = ["AnswerFormat", "Choice", "error_body", "stream_event"]

TokenText = Callable[[int], str]


def error_body(message: str, *, kind: str, code: int) -> dict[str, Any]:
    """Return OpenAI's form of an error."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def stream_event(body: dict[str, Any] | str) -> bytes:
    """Return one server-sent event."""
    return f"data: {body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)}\n\n".encode()


@dataclass
class Choice:
    """One answer so far."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, output: StepOutput) -> None:
        self.text += output.text
        if output.token is not None:
            self.tokens.append(output.token)
            if output.logprobs is not None:
                self.logprobs.append(output.logprobs)
        if output.finish is not None:
            self.finish_reason = output.finish.value


class AnswerFormat:
    """Bodies for one request: the same id, time and model in all of them."""

    def __init__(self, *, model: str, is_chat: bool, with_logprobs: bool, token_text: TokenText) -> None:
        self._is_chat, self._with_logprobs, self._token_text = is_chat, with_logprobs, token_text
        prefix = "chatcmpl" if is_chat else "cmpl"
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, choices: list[Choice], *, num_prompt_tokens: int) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        bodies = []
        for index, choice in enumerate(choices):
            content: dict[str, Any] = (
                {"message": {"role": "assistant", "content": choice.text, "refusal": None}}
                if self._is_chat
                else {"text": choice.text}
            )
            bodies.append(
                {
                    "index": index,
                    **content,
                    "logprobs": self._logprobs(choice.tokens, choice.logprobs),
                    "finish_reason": choice.finish_reason,
                }
            )
        kind = "chat.completion" if self._is_chat else "text_completion"
        generated = sum(len(choice.tokens) for choice in choices)
        return {**self._head, "object": kind, "choices": bodies, "usage": _usage(generated, num_prompt_tokens)}

    def first_piece(self, index: int) -> dict[str, Any] | None:
        """Return what opens a streamed choice: the role, in a chat."""
        if not self._is_chat:
            return None
        return self._piece({"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})

    def piece(self, index: int, output: StepOutput) -> dict[str, Any] | None:
        """Return what one output adds to a streamed choice; None where there is nothing to show."""
        if not output.text and output.finish is None and output.logprobs is None:
            return None
        tokens = [] if output.token is None else [output.token]
        logprobs = [] if output.logprobs is None else [output.logprobs]
        content: dict[str, Any] = (
            {"delta": {"content": output.text} if output.text else {}} if self._is_chat else {"text": output.text}
        )
        return self._piece(
            {
                "index": index,
                **content,
                "logprobs": self._logprobs(tokens, logprobs),
                "finish_reason": None if output.finish is None else output.finish.value,
            }
        )

    def usage_piece(self, num_generated: int, *, num_prompt_tokens: int) -> dict[str, Any]:
        """Return the last piece of a stream that was asked to include usage."""
        return {**self._piece(None), "usage": _usage(num_generated, num_prompt_tokens)}

    def _piece(self, choice: dict[str, Any] | None) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return {**self._head, "object": kind, "choices": [] if choice is None else [choice]}

    def _logprobs(self, tokens: list[int], logprobs: list[TokenLogprobs]) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        texts = [self._token_text(token) for token in tokens]
        tops = [[(self._token_text(token), value) for token, value in each.top] for each in logprobs]
        if not self._is_chat:
            offsets, place = [], 0
            for text in texts:
                offsets.append(place)
                place += len(text)
            return {
                "tokens": texts,
                "token_logprobs": [each.picked for each in logprobs],
                "top_logprobs": [dict(top) for top in tops],
                "text_offset": offsets,
            }
        content = [
            {
                **_entry(text, each.picked),
                "top_logprobs": [_entry(other, value) for other, value in top],
            }
            for text, each, top in zip(texts, logprobs, tops, strict=True)
        ]
        return {"content": content, "refusal": None}


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _usage(generated: int, num_prompt_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": num_prompt_tokens + generated,
    }
