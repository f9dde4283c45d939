"""What a server serves: one base model, its tokenizer, and adapters by name."""

from __future__ import annotations

import copy
import inspect
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.seeds import derive_seed
from cohort.core.source_location import Place
from cohort.data.chat import ChatRenderer
from cohort.data.examples import Conversation, Message
from cohort.data.files.messages import with_parsed_arguments
from cohort.data.problems import BadRowError
from cohort.data.tokenise import encode_prompt
from cohort.service.schema import ChatRequest, CompletionRequest, GenerationRequest
from cohort.service.served_base import ServedBase
from cohort.serving.adapter_pool import AdapterPool
from cohort.serving.adapter_registry import AdapterHandle, UnknownAdapterError
from cohort.serving.engine import ServingEngine, request_problems
from cohort.serving.sampler import Sampling
from cohort.serving.sequence import SequenceRequest

__all__ = ["PreparedRequest", "ServedModel"]

_MOST_QUICK_TOKENS = 4096


@dataclass(frozen=True, kw_only=True)
class PreparedRequest:
    """A request in tokens: the sequences in the order of its choices.

    Attributes:
        num_prompt_tokens: Of each prompt once, as usage counts them.
    """

    sequences: tuple[SequenceRequest, ...]
    num_prompt_tokens: int


class ServedModel:
    """Turns bodies into sequences.

    Attributes:
        names: What the base model is called; the first is listed.
        base: The base model by its content.
        max_model_len: Most tokens of prompt and answer together.
        max_prompts: Most sequences of one request.
        stop_ids: Tokens that end an answer.
        is_private: Whether an adapter of the pool is listed to no one.
    """

    def __init__(
        self,
        *,
        names: tuple[str, ...],
        tokenizer: Any,
        vocab_size: int,
        stop_ids: frozenset[int],
        engine: ServingEngine,
        pool: AdapterPool,
        max_prompts: int,
        base: ServedBase,
    ) -> None:
        self.names, self.pool, self.base = names, pool, base
        self.is_private: Callable[[str], bool] = lambda _: False
        self.max_model_len = engine.most_tokens
        self.max_prompts = max_prompts
        self._vocab_size, self.stop_ids = vocab_size, stop_ids
        # a tokenizer may be used by one thread at a time, and the engine's decodes with its own
        self._tokenizer, self._lock = copy.deepcopy(tokenizer), threading.Lock()

    def adapter(self, name: str) -> AdapterHandle | None:
        """Return the handle of a model's name; None for the base model.

        Raises:
            UnknownAdapterError: there is no such model.
        """
        if name in self.names:
            return None
        try:
            return self.pool.handle(name)
        except UnknownAdapterError as error:
            raise UnknownAdapterError(f"{error}; the base model: {' or '.join(self.names)}") from None

    def token_text(self, token: int) -> str:
        with self._lock:
            return str(self._tokenizer.decode([token]))

    def prepares_at_once(self, asked: CompletionRequest) -> bool:
        """Return whether :meth:`prepare_completion` needs no tokenizer, and has few tokens to look at."""
        prompt = asked.prompt
        if isinstance(prompt, str) or len(prompt) > _MOST_QUICK_TOKENS or any(isinstance(part, str) for part in prompt):
            return False
        return sum(len(part) if isinstance(part, list) else 1 for part in prompt) <= _MOST_QUICK_TOKENS

    def prepare_completion(self, asked: CompletionRequest) -> PreparedRequest:
        """Return the sequences of a completion.

        Raises:
            InputError: a prompt is empty, too long, or has tokens that the model does not have; there are too many.
            UnknownAdapterError: there is no such model.
        """
        adapter = self.adapter(asked.model)
        prompts = self._prompts(asked.prompt)
        return self._prepared(asked, prompts, adapter=adapter, max_tokens=asked.max_tokens, num_logprobs=asked.logprobs)

    def prepare_chat(self, asked: ChatRequest) -> PreparedRequest:
        """Return the sequences of a chat completion.

        Raises:
            InputError: the chat template refuses the messages, there is none, or they are too long.
            UnknownAdapterError: there is no such model.
        """
        adapter = self.adapter(asked.model)
        renderer = ChatRenderer(tokenizer=self._tokenizer, variables=self._variables(asked))
        if asked.top_logprobs is not None and not asked.logprobs:
            raise InputError(
                Problem(
                    where=Place(key=("top_logprobs",)),
                    found=f"{asked.top_logprobs} without logprobs",
                    allowed="top_logprobs together with logprobs: true",
                    hint="Set logprobs to true.",
                )
            )
        with self._lock:
            prompt = self._rendered(asked, renderer)
        limit = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
        num_logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
        return self._prepared(asked, [prompt], adapter=adapter, max_tokens=limit, num_logprobs=num_logprobs)

    def _variables(self, asked: ChatRequest) -> Mapping[str, Any]:
        """Return what the request gives its chat template.

        Raises:
            InputError: a name is no variable of templates: it would say how transformers renders one.
        """
        given = asked.chat_template_kwargs or {}
        taken = inspect.signature(self._tokenizer.apply_chat_template).parameters
        wrong = sorted(name for name in given if name in taken or not name.isidentifier())
        if wrong:
            raise InputError(
                Problem(
                    where=Place(key=("chat_template_kwargs",)),
                    found=repr(wrong[0]),
                    allowed="variables that chat templates read, such as enable_thinking",
                    hint="Leave it out.",
                )
            )
        return given

    def _rendered(self, asked: ChatRequest, renderer: ChatRenderer) -> list[int]:
        if not self._tokenizer.chat_template:
            raise InputError(
                Problem(
                    where=Place(key=("messages",)),
                    found="a model without a chat template",
                    allowed="a model with one, or POST /v1/completions",
                    hint="Send the prompt as text to /v1/completions, or start the server with --chat-template.",
                )
            )
        try:
            text = renderer.prompt(_conversation(asked))
        except BadRowError as error:
            raise InputError(error.at(Place(key=("messages",))).problem) from error
        return encode_prompt(text, tokenizer=self._tokenizer, is_chat=True)

    def _prompts(self, prompt: str | list[str] | list[int] | list[list[int]]) -> list[list[int]]:
        if isinstance(prompt, str):
            return [self._encoded(prompt)]
        if prompt and all(isinstance(part, int) for part in prompt):
            return [[int(str(token)) for token in prompt]]
        return [
            self._encoded(part) if isinstance(part, str) else [int(token) for token in part]
            for part in prompt
            if not isinstance(part, int)
        ]

    def _encoded(self, text: str) -> list[int]:
        with self._lock:
            return encode_prompt(text, tokenizer=self._tokenizer, is_chat=False)

    def _prepared(
        self,
        asked: GenerationRequest,
        prompts: Sequence[list[int]],
        *,
        adapter: AdapterHandle | None,
        max_tokens: int | None,
        num_logprobs: int | None,
    ) -> PreparedRequest:
        count = asked.n or 1
        if problems := list(self._problems(prompts, count=count, max_tokens=max_tokens)):
            raise InputError(problems)
        seed = secrets.randbits(62) if asked.seed is None else asked.seed
        top_k = asked.top_k or 0
        sampling = Sampling(
            temperature=1.0 if asked.temperature is None else asked.temperature,
            top_p=1.0 if asked.top_p is None else asked.top_p,
            top_k=max(top_k, 0),
        )
        stop_ids = frozenset(asked.stop_token_ids or ()) | (frozenset() if asked.ignore_eos else self.stop_ids)
        sequences = tuple(
            SequenceRequest(
                prompt_tokens=tokens,
                max_new_tokens=self.max_model_len if max_tokens is None else max_tokens,
                adapter=adapter,
                sampling=sampling,
                # the first choice of a prompt draws as it would alone
                seed=seed if choice == 0 else derive_seed("choice", seed, choice),
                stop_ids=stop_ids,
                stop_strings=asked.stop_strings,
                num_logprobs=num_logprobs,
            )
            for tokens in prompts
            for choice in range(count)
        )
        return PreparedRequest(sequences=sequences, num_prompt_tokens=sum(len(tokens) for tokens in prompts))

    def _problems(self, prompts: Sequence[list[int]], *, count: int, max_tokens: int | None) -> Iterator[Problem]:
        problems = [
            problem
            for index, tokens in enumerate(prompts)
            for problem in request_problems(
                tokens,
                where="prompt" if len(prompts) == 1 else f"prompt {index}",
                vocab_size=self._vocab_size,
                limit=self.max_model_len,
            )
        ]
        yield from problems
        if not 0 < len(prompts) * count <= self.max_prompts:
            yield Problem(
                where="prompt",
                found=f"{len(prompts)} prompts with n {count}",
                allowed=f"1 to {self.max_prompts} answers in a request",
                hint="Send several requests." if prompts else "Send a prompt.",
            )
        longest = max(map(len, prompts), default=0)
        if max_tokens is not None and not problems and longest + max_tokens > self.max_model_len:
            yield Problem(
                where=Place(key=("max_tokens",)),
                found=f"{max_tokens} after a prompt of {longest} tokens",
                allowed=f"at most {self.max_model_len - longest}: prompt and answer together have at most "
                f"{self.max_model_len} tokens",
                hint="Ask for fewer, shorten the prompt, or leave it out for all there is room for.",
            )


def _conversation(asked: ChatRequest) -> Conversation:
    """Return the conversation of a request.

    Raises:
        BadRowError: calls of tools are none.
        InputError: a turn says nothing.
    """
    messages = []
    for place, each in enumerate(asked.messages):
        extra = each.extra
        if each.tool_calls:
            extra["tool_calls"] = with_parsed_arguments(each.tool_calls, place=f"messages[{place}]")
        elif each.content is None:
            where = Place(key=("messages", place, "content"))
            raise InputError(Problem(where=where, found="nothing", allowed="text", hint="Add content."))
        messages.append(Message(role=each.role, content=each.text, trained=False, extra=extra))
    tools = None if asked.tool_choice == "none" else asked.tools
    return Conversation(messages=tuple(messages), tools=tuple(tools) if tools else None)
