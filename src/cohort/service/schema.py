"""The bodies that clients send: OpenAI's completions and chat completions, with vLLM's further keys.

A key that would change the answer and is not supported is refused, not ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cohort.core.errors import InputError, Problem
from cohort.core.input_values.validation_words import allowed_value
from cohort.core.source_location import Place

__all__ = [
    "Body",
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
_MOST_TOOLS = 128
# what pydantic calls text among the forms of a value
_TEXT_FORMS = ("str", "constrained-str")
_NUMBER_FORMS = ("int", "float", "constrained-int", "constrained-float")
# of the keys whose values have several forms, or one value only
_ALLOWED = {
    "prompt": "text, a list of texts, token ids, or a list of lists of token ids",
    "stop": f"text, or a list of at most {_MOST_STOPS} texts",
    "content": 'text, or a list of parts {"type": "text", "text": "..."}',
    "text": "text",
    "echo": "false",
    "n_epochs": "auto, or a whole number from 1 to 1000",
    "batch_size": "auto, or a whole number from 1 to 4096",
    "learning_rate_multiplier": "auto, or a number above 0",
    "beta": "auto, or a number above 0 and at most 2",
    "frequency_penalty": "0: this server penalises no tokens",
    "presence_penalty": "0: this server penalises no tokens",
}
_NonEmpty = Annotated[str, Field(min_length=1)]


class Body(BaseModel):
    """A body whose keys are all known, and whose values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StreamOptions(Body):
    """Whether a stream ends with the counts of its tokens."""

    include_usage: bool = False


class GenerationRequest(Body):
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


class _TextPart(Body):
    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """One turn; of its parts only text is supported. What the chat template may read besides goes to it as it is."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_TextPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content or ())

    @property
    def extra(self) -> dict[str, Any]:
        """The keys next to role and content that are given."""
        keys = ("name", "reasoning_content", "tool_calls", "tool_call_id")
        return {key: value for key in keys if (value := getattr(self, key)) is not None}


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1)
    # shown to the model by its chat template; what it answers is text, calls of tools included
    tools: list[dict[str, Any]] | None = Field(default=None, max_length=_MOST_TOOLS)
    tool_choice: Literal["auto", "none"] | None = None
    chat_template_kwargs: dict[str, bool | int | float | str | None] | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=_MOST_TOP_LOGPROBS)


class LoadAdapterRequest(Body):
    """POST /v1/load_lora_adapter, as vLLM has it."""

    lora_name: Annotated[str, Field(min_length=1, max_length=200)]
    lora_path: _NonEmpty
    load_inplace: bool = False
    # ours: refuses an adapter of another base model before it exists
    base_model_sha256: _NonEmpty | None = None


class UnloadAdapterRequest(Body):
    """POST /v1/unload_lora_adapter, as vLLM has it."""

    lora_name: _NonEmpty
    # vLLM's clients may send it; the name alone says which
    lora_int_id: int | None = None


B = TypeVar("B", bound=Body)


def parse_body(kind: type[B], body: bytes) -> B:
    """Return the body of a request.

    Raises:
        InputError: it is no JSON object, or has keys or values that are not allowed; all of them at once.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        problems = (_problem(kind, each) for each in _told_once(error.errors()[:20]))
        # a value of several forms has the same problem with each of them
        raise InputError(list(dict.fromkeys(problems))) from None


def _told_once(errors: Sequence[Any]) -> Iterator[Any]:
    """Yield the errors, of a value that may have several forms only one, or those of the form it has."""
    groups: dict[tuple[Any, ...], list[tuple[str | None, Any]]] = {}
    for error in errors:
        form = next((place for place, part in enumerate(error["loc"]) if _is_form(part)), None)
        name = None if form is None else str(error["loc"][form])
        groups.setdefault(error["loc"][:form], []).append((name, error))
    for path, found in groups.items():
        whole = next((error for name, error in found if name in _TEXT_FORMS), None)
        if whole is None:
            yield from (error for _, error in found)
            continue
        of_lists = [(name, error) for name, error in found if name not in _TEXT_FORMS]
        if isinstance(whole["input"], list) and len({name for name, _ in of_lists}) == 1:
            yield from (error for _, error in of_lists)
        else:
            yield whole | {"loc": path}


def _is_form(part: object) -> bool:
    """Return whether a part of an error's place is no key: pydantic puts the form that it tried there."""
    return isinstance(part, str) and ("[" in part or part in _TEXT_FORMS or part in _NUMBER_FORMS)


def _problem(kind: type[Body], error: Any) -> Problem:
    path = tuple(part for part in error["loc"] if not _is_form(part))
    found = "nothing" if error["type"] == "missing" else _shown(error["input"])
    if error["type"] == "json_invalid":
        return Problem(
            where="body",
            found=f"no JSON ({error['ctx']['error']})",
            allowed="a JSON object",
            hint="Send JSON with Content-Type application/json.",
        )
    if error["type"] == "extra_forbidden":
        known = _known_keys(kind, path[:-1])
        nearest = _nearest(str(path[-1]), known)
        hint = f"Did you mean {nearest}?" if nearest else "Leave it out: this server does not support it."
        allowed = ", ".join(known) or "the keys it supports"
        return Problem(where=Place(key=path), found="an unknown key", allowed=allowed, hint=hint)
    name = str(path[-1]) if path else "body"
    allowed = _ALLOWED.get(name) or allowed_value(error)
    is_optional = len(path) == 1 and not kind.model_fields[name].is_required()
    hint = f"Correct the value{', or leave the key out' if is_optional else ''}."
    if error["type"] == "missing":
        hint = f"Add {name}."
    return Problem(where=Place(key=path) if path else name, found=found, allowed=allowed, hint=hint)


def _known_keys(kind: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Return the keys of the object at a place of a body; of its forms, those of all; none where that is no model."""
    kinds = {kind: None}
    for part in path:
        # a number is a place in a list, whose entries have the forms of the key before it
        if isinstance(part, str):
            fields = [each.model_fields[part] for each in kinds if part in each.model_fields]
            kinds = dict.fromkeys(model for field in fields for model in _models_in(field.annotation))
    return list(dict.fromkeys(name for each in kinds for name in each.model_fields))


def _models_in(form: object) -> Iterator[type[BaseModel]]:
    if isinstance(form, type) and issubclass(form, BaseModel):
        yield form
    for inner in get_args(form):
        yield from _models_in(inner)


def _nearest(word: str, known: Sequence[str]) -> str | None:
    # a key that someone shortened is also the start of the longer one: learning_rate
    nearest = difflib.get_close_matches(word, known, n=1) or [name for name in known if name.startswith(f"{word}_")]
    return nearest[0] if nearest else None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
