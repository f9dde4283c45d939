"""Names of models: the base model has no adapter, and an unknown name lists what there is."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.models.tokenizer import load_tokenizer
from cohort.service.schema import ChatRequest, CompletionRequest, parse_body
from cohort.service.served_model import ServedModel
from cohort.serving.adapter_registry import UnknownAdapterError
from tests.end_to_end.tiny_tasks import write_inputs


def test_a_name_is_the_base_model_s_an_adapter_s_or_an_error_with_all_names() -> None:
    def handle(name: str) -> str:
        if name != "ada":
            raise UnknownAdapterError(f"there is no {name!r}; adapters: ada")
        return "ada's handle"

    engine: Any = SimpleNamespace(most_tokens=64)
    content: Any = None
    pool: Any = SimpleNamespace(handle=handle)
    model = ServedModel(
        names=("llama", "base"),
        tokenizer=None,
        vocab_size=9,
        stop_ids=frozenset(),
        engine=engine,
        pool=pool,
        max_prompts=2,
        base=content,
    )
    assert model.adapter("base") is None
    assert str(model.adapter("ada")) == "ada's handle"
    with pytest.raises(UnknownAdapterError, match=r"there is no 'eve'; adapters: ada; the base model: llama or base"):
        model.adapter("eve")


TEMPLATE = (
    "{% for t in tools or [] %}[{{ t['function']['name'] }}]{% endfor %}"
    "{% for m in messages %}{{ m['role'] }}:{{ m['reasoning_content'] or '' }}"
    "{% for c in m['tool_calls'] or [] %}{{ c['function']['name'] }}({{ c['function']['arguments']['x'] }}){% endfor %}"
    "{{ m['content'] }};{% endfor %}{% if enable_thinking is defined and not enable_thinking %}<quick>{% endif %}"
)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    tokenizer = load_tokenizer(write_inputs(tmp_path_factory.mktemp("inputs")) / "model")
    tokenizer.chat_template = TEMPLATE
    engine: Any = SimpleNamespace(most_tokens=4096)
    anything: Any = SimpleNamespace()
    return ServedModel(
        names=("base",),
        tokenizer=tokenizer,
        vocab_size=len(tokenizer),
        stop_ids=frozenset(),
        engine=engine,
        pool=anything,
        max_prompts=2,
        base=anything,
    )


def prompt_of(model: ServedModel, **keys: Any) -> str:
    asked = parse_body(ChatRequest, json.dumps({"model": "base", "max_tokens": 1, **keys}).encode())
    (sequence,) = model.prepare_chat(asked).sequences
    return str(model._tokenizer.decode(sequence.prompt_tokens, skip_special_tokens=True))


def test_tools_their_calls_and_thoughts_reach_the_template(chat_model: ServedModel) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": '{"x": 3}'}}
    messages = [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
    ]
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    assert prompt_of(chat_model, messages=messages, tools=tools) == "[add]user:Q;assistant:hmadd(3);tool:4;"
    assert prompt_of(chat_model, messages=messages[:1], tools=tools, tool_choice="none") == "user:Q;"


def test_a_request_says_whether_to_think(chat_model: ServedModel) -> None:
    messages = [{"role": "user", "content": "Q"}]
    variables = {"enable_thinking": False}
    assert prompt_of(chat_model, messages=messages, chat_template_kwargs=variables) == "user:Q;<quick>"
    with pytest.raises(InputError, match=r"chat_template_kwargs: found 'tokenize'"):
        prompt_of(chat_model, messages=messages, chat_template_kwargs={"tokenize": True})


def test_a_turn_without_content_is_to_be_filled(chat_model: ServedModel) -> None:
    with pytest.raises(InputError, match=r"messages\[0\].content: found nothing; allowed: text. Add content"):
        prompt_of(chat_model, messages=[{"role": "user"}])


@pytest.mark.parametrize(
    ("prompt", "is_quick"),
    [
        ("1+1=", False),
        (["1+1=", "2"], False),
        ([1, 2, 3], True),
        ([[1, 2], [3]], True),
        ([], True),
        ([1] * 4096, True),
        ([1] * 4097, False),
        ([[1] * 3000, [2] * 3000], False),
    ],
)
def test_only_few_tokens_are_prepared_without_a_thread(
    chat_model: ServedModel, prompt: list[Any] | str, *, is_quick: bool
) -> None:
    asked = parse_body(CompletionRequest, json.dumps({"model": "base", "prompt": prompt}).encode())
    assert chat_model.prepares_at_once(asked) == is_quick
