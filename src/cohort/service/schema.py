"""The bodies that clients send: OpenAI's completions and chat completions, with vLLM's further keys.

A key that would change the answer and is not supported is refused, not ignored.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cohort.core.errors import InputError, Problem
from cohort.core.place import Place

__all__ = [
    "ChatMessage",
    "ChatRequest",
    "CompletionRequest",
    "GenerationRequest",
    "LoadAdapterRequest",
    "StreamOptions",
    "UnloadAdapterRequest",
    "parse_body",
]

# OpenAI's own limit is 4
_MOST_STOPS = 16
_MOST_TOP_LOGPROBS = 20
_NonEmpty = Annotated[str, Field(min_length=1)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StreamOptions(_Body):
    """Whether a stream ends with the counts of its tokens."""

    include_usage: bool = False


class GenerationRequest(_Body):
    """What both kinds of completion have in common."""

    model: _NonEmpty
    temperature: float | None = Field(default=None, ge=0.0, le=100.0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=-1)
    n: int | None = Field(default=None, ge=1, le=128)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: _NonEmpty | Annotated[list[_NonEmpty], Field(max_length=_MOST_STOPS)] | None = None
    stop_token_ids: list[int] | None = Field(default=None, max_length=1024)
    ignore_eos: bool = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # neutral values are accepted, since clients send them
    frequency_penalty: float | None = Field(default=None, ge=0.0, le=0.0)
    presence_penalty: float | None = Field(default=None, ge=0.0, le=0.0)
    # who asks and what a provider may keep: nothing of it changes an answer
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = Field(default=16, ge=1)
    logprobs: int | None = Field(default=None, ge=0, le=_MOST_TOP_LOGPROBS)
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None


class _TextPart(_Body):
    type: Literal["text"]
    text: str


class ChatMessage(_Body):
    """One turn; of its parts only text is supported."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_TextPart]
    name: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=_MOST_TOP_LOGPROBS)


class LoadAdapterRequest(_Body):
    """POST /v1/load_lora_adapter, as vLLM has it."""

    lora_name: Annotated[str, Field(min_length=1, max_length=200)]
    lora_path: _NonEmpty
    load_inplace: bool = False


class UnloadAdapterRequest(_Body):
    """POST /v1/unload_lora_adapter, as vLLM has it."""

    lora_name: _NonEmpty
    # vLLM's clients may send it; the name alone says which
    lora_int_id: int | None = None


B = TypeVar("B", bound=_Body)


def parse_body(kind: type[B], body: bytes) -> B:
    """Return the body of a request.

    Raises:
        InputError: it is no JSON object, or has keys or values that are not allowed; all of them at once.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise InputError([_problem(kind, each) for each in error.errors()[:20]]) from None


def _problem(kind: type[_Body], error: Any) -> Problem:
    path = tuple(part for part in error["loc"] if not (isinstance(part, str) and "[" in part))
    found = "nothing" if error["type"] == "missing" else _shown(error["input"])
    if error["type"] == "json_invalid":
        return Problem(
            where="body",
            found=error["msg"],
            allowed="a JSON object",
            hint="Send JSON with Content-Type application/json.",
        )
    if error["type"] == "extra_forbidden":
        nearest = difflib.get_close_matches(str(path[-1]), kind.model_fields, n=1)
        hint = f"Did you mean {nearest[0]}?" if nearest else "Leave it out: this server does not support it."
        return Problem(where=Place(key=path), found="an unknown key", allowed=", ".join(kind.model_fields), hint=hint)
    return Problem(where=Place(key=path), found=found, allowed=error["msg"], hint="Correct the value.")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
