from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from transformers import PreTrainedTokenizerBase

from cohort.core.errors import InputError
from cohort.core.source_location import Place
from cohort.data.chat import ChatRenderer, require_chat_template, use_chat_template
from cohort.data.examples import Conversation
from cohort.data.files.messages import parse_messages
from cohort.data.masking import RenderedRow
from cohort.data.problems import BadRowError, ProblemKind

MakeTokenizer = Callable[..., PreTrainedTokenizerBase]


def conversation(*turns: str, weights: Mapping[int, int] | None = None) -> Conversation:
    """``"user: Q"`` -> a message; ``weights`` by place."""
    items = []
    for place, turn in enumerate(turns):
        role, _, content = turn.partition(": ")
        item: dict[str, object] = {"role": role, "content": content}
        if weights and place in weights:
            item["weight"] = weights[place]
        items.append(item)
    return Conversation(messages=parse_messages(items, key="messages"))


def trained_texts(row: RenderedRow) -> list[str]:
    return [row.text[start:end] for start, end in row.trained_spans]


def test_chatml_answers_of_every_turn_are_trained(make_tokenizer: MakeTokenizer, templates: Mapping[str, str]) -> None:
    chat = ChatRenderer(tokenizer=make_tokenizer(chat_template=templates["chatml"]))
    row = chat.render(conversation("system: S", "user: Q1", "assistant: A1", "user: Q2", "assistant: A2"))
    assert trained_texts(row) == ["A1<|im_end|>", "A2<|im_end|>"]
    assert row.text.endswith("A2<|im_end|>\n")
    assert row.prompt == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
        "<|im_start|>user\nQ2<|im_end|>\n<|im_start|>assistant\n"
    )
    assert row.reference == "A2"
    assert not row.append_eos
    assert not row.add_special_tokens


def test_llama_3_trims_and_its_generation_prompt_is_not_trained(
    make_tokenizer: MakeTokenizer, templates: Mapping[str, str]
) -> None:
    chat = ChatRenderer(tokenizer=make_tokenizer(chat_template=templates["llama_3"]))
    row = chat.render(conversation("user:   Q  ", "assistant:  A \n"))
    assert row.text == "<s><|start|>user<|end|>\n\nQ<|im_end|><|start|>assistant<|end|>\n\nA<|im_end|>"
    assert trained_texts(row) == ["A<|im_end|>"]


def test_a_template_without_generation_prompt(make_tokenizer: MakeTokenizer, templates: Mapping[str, str]) -> None:
    chat = ChatRenderer(tokenizer=make_tokenizer(chat_template=templates["instruct"]))
    row = chat.render(conversation("user: Q1", "assistant: A1", "user: Q2", "assistant: A2"))
    assert trained_texts(row) == [" A1</s>", " A2</s>"]
    assert row.prompt == "<s>[INST] Q1 [/INST] A1</s>[INST] Q2 [/INST]"
    assert not row.append_eos


def test_a_template_that_closes_nothing_gets_an_eos(
    make_tokenizer: MakeTokenizer, templates: Mapping[str, str]
) -> None:
    chat = ChatRenderer(tokenizer=make_tokenizer(chat_template=templates["plain_headers"]))
    row = chat.render(conversation("user: Q", "assistant: A"))
    assert trained_texts(row) == ["A\n"]
    assert row.append_eos


def test_a_special_token_within_the_answer_does_not_close_it(
    make_tokenizer: MakeTokenizer, templates: Mapping[str, str]
) -> None:
    chat = ChatRenderer(tokenizer=make_tokenizer(chat_template=templates["plain_headers"]))
    assert chat.render(conversation("user: Q", "assistant: A<|im_end|>")).append_eos


def test_a_template_that_closes_the_whole_text(make_tokenizer: MakeTokenizer, templates: Mapping[str, str]) -> None:
    chat = ChatRenderer(tokenizer=make_tokenizer(chat_template=templates["closes_text"]))
    row = chat.render(conversation("user: Q1", "assistant: A1", "user: Q2", "assistant: A2"))
    assert trained_texts(row) == ["A1<|im_end|>", "A2<|im_end|></s>"]
    assert not row.append_eos


def test_weight_0_leaves_an_answer_out(make_tokenizer: MakeTokenizer, templates: Mapping[str, str]) -> None:
    chat = ChatRenderer(tokenizer=make_tokenizer(chat_template=templates["chatml"]))
    turns = ("user: Q1", "assistant: A1", "user: Q2", "assistant: A2")
    assert trained_texts(chat.render(conversation(*turns, weights={1: 0}))) == ["A2<|im_end|>"]
    last_out = chat.render(conversation(*turns, weights={3: 0}))
    assert trained_texts(last_out) == ["A1<|im_end|>"]
    # generation is measured on an answer that is trained
    assert last_out.reference == "A1"
    assert not last_out.append_eos


def test_everything_is_trained_on_request(make_tokenizer: MakeTokenizer, templates: Mapping[str, str]) -> None:
    tokenizer = make_tokenizer(chat_template=templates["drops_reasoning"])
    chat = ChatRenderer(tokenizer=tokenizer, completion_only_loss=False)
    row = chat.render(conversation("user: Q1", "assistant: <think>t</think>A1", "user: Q2", "assistant: A2"))
    assert trained_texts(row) == [row.text]


def test_a_template_that_drops_earlier_reasoning_is_refused(
    make_tokenizer: MakeTokenizer, templates: Mapping[str, str]
) -> None:
    chat = ChatRenderer(tokenizer=make_tokenizer(chat_template=templates["drops_reasoning"]))
    turns = ("user: Q1", "assistant: <think>t</think>A1", "user: Q2", "assistant: <think>u</think>A2")
    with pytest.raises(BadRowError) as caught:
        chat.render(conversation(*turns))
    assert caught.value.kind is ProblemKind.TEMPLATE
    assert "rewrites earlier text: up to turn 2 it has" in caught.value.found
    assert "<think>t" in caught.value.found
    assert '"weight": 0' in caught.value.hint
    # the hint works: the last answer alone has a prefix that holds
    row = chat.render(conversation(*turns, weights={1: 0}))
    assert trained_texts(row) == ["<think>u</think>A2<|im_end|>"]


def test_a_template_that_moves_the_system_text_is_refused_only_where_it_moves(
    make_tokenizer: MakeTokenizer, templates: Mapping[str, str]
) -> None:
    chat = ChatRenderer(tokenizer=make_tokenizer(chat_template=templates["system_moves"]))
    assert trained_texts(chat.render(conversation("system: S", "user: Q", "assistant: A"))) == [" A</s>"]
    several = ("user: Q1", "assistant: A1", "user: Q2", "assistant: A2")
    assert trained_texts(chat.render(conversation(*several))) == [" A1</s>", " A2</s>"]
    with pytest.raises(BadRowError, match="rewrites earlier text"):
        chat.render(conversation("system: S", *several))


def test_a_generation_prompt_that_differs_from_the_answered_turn_is_refused(make_tokenizer: MakeTokenizer) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>bot\n{% endif %}"
    )
    chat = ChatRenderer(tokenizer=make_tokenizer(chat_template=template))
    with pytest.raises(BadRowError, match="up to the generation prompt of turn 2"):
        chat.render(conversation("user: Q", "assistant: A"))


def test_a_template_that_raises_is_reported_with_its_words(
    make_tokenizer: MakeTokenizer, templates: Mapping[str, str]
) -> None:
    chat = ChatRenderer(tokenizer=make_tokenizer(chat_template=templates["instruct"]))
    with pytest.raises(BadRowError, match="Only user and assistant roles are supported!") as caught:
        chat.render(conversation("system: S", "user: Q", "assistant: A"))
    assert "system, user, assistant" in caught.value.found


def test_a_trained_answer_needs_something_before_it(
    make_tokenizer: MakeTokenizer, templates: Mapping[str, str]
) -> None:
    chat = ChatRenderer(tokenizer=make_tokenizer(chat_template=templates["chatml"]))
    with pytest.raises(BadRowError, match="starts with a trained answer"):
        chat.render(conversation("assistant: Hello", "user: Q", "assistant: A"))
    row = chat.render(conversation("assistant: Hello", "user: Q", "assistant: A", weights={0: 0}))
    assert trained_texts(row) == ["A<|im_end|>"]


def test_templates_that_ask_for_the_date_get_one_day(make_tokenizer: MakeTokenizer) -> None:
    template = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}|{{ m['content'] }}{% endfor %}"
    chat = ChatRenderer(tokenizer=make_tokenizer(chat_template=template))
    assert chat.render(conversation("user: Q", "assistant: A")).text == "26 Jul 2024|Q|A"


def test_tools_and_tool_calls_reach_the_template(make_tokenizer: MakeTokenizer) -> None:
    template = (
        "{% for t in tools or [] %}[{{ t['function']['name'] }}]{% endfor %}"
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
        "{% for c in m['tool_calls'] or [] %}{% set f = c['function'] %}{{ f['name'] }}({{ f['arguments']['x'] }})"
        "{% endfor %}"
        "{{ m['content'] }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    call = {"type": "function", "function": {"name": "add", "arguments": '{"x": 3}'}}
    messages = parse_messages(
        [{"role": "user", "content": "Q"}, {"role": "assistant", "content": None, "tool_calls": [call]}],
        key="messages",
    )
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    chat = ChatRenderer(tokenizer=make_tokenizer(chat_template=template))
    row = chat.render(Conversation(messages=messages, tools=(tool,)))
    assert row.text.startswith("[add]")
    assert trained_texts(row) == ["add(3)<|im_end|>"]


def test_no_chat_template_is_an_input_error(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(InputError) as caught:
        require_chat_template(tokenizer, found_format="messages", where=Place(key=("dataset", "train")))
    (problem,) = caught.value.problems
    assert str(problem.where) == "dataset.train"
    assert "without a chat template" in problem.found
    assert "prompt and completion" in problem.hint


def test_the_words_that_end_an_answer_and_are_no_token_are_named(
    make_tokenizer: MakeTokenizer, templates: Mapping[str, str]
) -> None:
    # a token of the tokenizer ends turns, or the template has nothing behind an answer
    for name in ("chatml", "llama_3", "instruct"):
        assert ChatRenderer(tokenizer=make_tokenizer(chat_template=templates[name])).unknown_end() is None
    words = templates["chatml"].replace("<|im_end|>", "<|done|>")
    tokenizer = make_tokenizer(chat_template=words)
    assert ChatRenderer(tokenizer=tokenizer).unknown_end() == "<|done|>"
    row = ChatRenderer(tokenizer=tokenizer).render(conversation("user: Q", "assistant: A"))
    # trained as text, and the token that stops behind it
    assert trained_texts(row) == ["A<|done|>\n"]
    assert row.append_eos
    # known by name, each ends with the tokenizer's own token
    for name in ("plain", "zephyr"):
        use_chat_template(tokenizer, name)
        assert ChatRenderer(tokenizer=tokenizer).unknown_end() is None
    refusing = make_tokenizer(chat_template="{{ raise_exception('no') }}")
    assert ChatRenderer(tokenizer=refusing).unknown_end() is None


def test_a_template_that_is_no_jinja_is_its_own_problem(make_tokenizer: MakeTokenizer) -> None:
    chat = ChatRenderer(tokenizer=make_tokenizer(chat_template="{% for m in messages %}\n{{ m.content }}{% endfor"))
    with pytest.raises(InputError, match=r"dataset.chat_template: found a template that is not Jinja \(line 2"):
        chat.render(conversation("user: Q", "assistant: A"))


THINKING = (
    "{% for m in messages %}{{ m['role'] }}:"
    "{% if m['reasoning_content'] %}<t>{{ m['reasoning_content'] }}</t>{% endif %}"
    "{{ m['content'] }};{% endfor %}{% if add_generation_prompt %}assistant:"
    "{% if enable_thinking is defined and not enable_thinking %}<t></t>{% endif %}{% endif %}"
)


def test_variables_of_the_task_are_in_the_template_and_a_caller_goes_before_them(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(chat_template=THINKING)
    use_chat_template(tokenizer, None, {"enable_thinking": False, "note": None, "name": "it's"})
    asked = conversation("user: Q")
    assert ChatRenderer(tokenizer=tokenizer).prompt(asked) == "user:Q;assistant:<t></t>"
    thinks = ChatRenderer(tokenizer=tokenizer, variables={"enable_thinking": True})
    assert thinks.prompt(asked) == "user:Q;assistant:"
    # for those who load the tokenizer next to the adapter
    again = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Q"}], add_generation_prompt=True, tokenize=False
    )
    assert again == "user:Q;assistant:<t></t>"


def test_thoughts_of_an_answer_are_trained_with_it(make_tokenizer: MakeTokenizer) -> None:
    messages = parse_messages(
        [{"role": "user", "content": "Q"}, {"role": "assistant", "reasoning_content": "hm", "content": "A"}],
        key="messages",
    )
    row = ChatRenderer(tokenizer=make_tokenizer(chat_template=THINKING)).render(Conversation(messages=messages))
    assert trained_texts(row) == ["<t>hm</t>A;"]
