from __future__ import annotations

import json
from typing import Any

import pytest

from cohort.data.examples import Conversation, Message, PlainText, PreferencePair, PromptCompletion
from cohort.data.files.named_row import NamedRow
from cohort.data.files.parsing import alpaca_prompt, parse_row
from cohort.data.problems import BadRowError

Q, A = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
USER, ANSWER = Message(role="user", content="Q", trained=False), Message(role="assistant", content="A", trained=True)


def parsed(row: dict[str, Any], data_format: str, *, template: str | None = None) -> Any:
    return parse_row(NamedRow(row), original=row, data_format=data_format, template=template)


def test_text() -> None:
    assert parsed({"text": "T"}, "text") == PlainText(text="T")


def test_prompt_completion() -> None:
    assert parsed({"prompt": "P", "completion": "C"}, "prompt_completion") == PromptCompletion(
        prompt="P", completion="C"
    )


def test_a_template_builds_the_prompt_from_any_column() -> None:
    row = {"prompt": "ignored", "question": "2+2", "level": 3, "completion": "4"}
    template = "({level}) Question: {question} {{x}}\n"
    assert parsed(row, "prompt_completion", template=template).prompt == "(3) Question: 2+2 {x}\n"


def test_values_with_braces_are_not_templates() -> None:
    row = {"question": "{level}", "completion": "4"}
    assert parsed(row, "prompt_completion", template="{question}").prompt == "{level}"


def test_prompt_and_completion_as_messages() -> None:
    earlier = {"role": "assistant", "content": "not trained"}
    example = parsed({"prompt": [Q, earlier, Q], "completion": [A]}, "prompt_completion")
    assert isinstance(example, Conversation)
    assert [message.trained for message in example.messages] == [False, False, False, True]


def test_messages_with_weights_and_parts() -> None:
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    row = {"messages": [Q, {"role": "assistant", "content": parts, "weight": 0}, Q, A]}
    example = parsed(row, "messages")
    assert [message.content for message in example.messages] == ["Q", "AB", "Q", "A"]
    assert [message.trained for message in example.messages] == [False, False, False, True]


def test_messages_as_json_text_as_csv_holds_them() -> None:
    assert parsed({"messages": json.dumps([Q, A])}, "messages").messages == (USER, ANSWER)


def test_missing_fields_that_parquet_writes_as_null() -> None:
    rows = [{**Q, "weight": None, "tool_calls": None}, {**A, "weight": None, "tool_calls": None}]
    assert parsed({"messages": rows, "tools": None}, "messages").messages == (USER, ANSWER)


def test_sharegpt_roles() -> None:
    turns = [("system", "S"), ("human", "Q"), ("gpt", "A"), ("tool", "R"), ("gpt", "B")]
    row = {"conversations": [{"from": sender, "value": text} for sender, text in turns]}
    example = parsed(row, "sharegpt")
    assert [message.role for message in example.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert [message.trained for message in example.messages] == [False, False, True, False, True]


def test_sharegpt_takes_the_row_s_system_text_and_openai_names() -> None:
    row = {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}], "system": "S"}
    assert parsed(row, "sharegpt").messages[0] == Message(role="system", content="S", trained=False)
    assert parsed({"conversations": [Q, A]}, "sharegpt").messages == (USER, ANSWER)


def test_alpaca() -> None:
    row = {"instruction": "I", "input": "", "output": "O"}
    example = parsed(row, "alpaca")
    assert example.completion == "O"
    assert example.prompt == alpaca_prompt("I")
    assert example.prompt.endswith("### Instruction:\nI\n\n### Response:\n")
    with_input = parsed({**row, "input": "X"}, "alpaca").prompt
    assert "paired with an input" in with_input
    assert "### Input:\nX\n\n### Response:\n" in with_input
    assert parsed({**row, "system": "Be brief."}, "alpaca").prompt.startswith("Be brief.\n\n### Instruction:")
    assert parsed(row, "alpaca", template="{instruction}|{input}|").prompt == "I||"


def test_preference_as_text() -> None:
    pair = parsed({"prompt": "P", "chosen": "C", "rejected": "R"}, "preference")
    assert pair == PreferencePair(prompt="P", chosen="C", rejected="R")
    shared = parsed({"chosen": "Human: hi AI: yes", "rejected": "Human: hi AI: no"}, "preference")
    assert shared == PreferencePair(prompt="Human: hi AI:", chosen=" yes", rejected=" no")


def test_preference_as_messages() -> None:
    other = {"role": "assistant", "content": "B"}
    explicit = parsed({"prompt": [Q], "chosen": [A], "rejected": [other]}, "preference")
    assert explicit.prompt == (USER,)
    assert explicit.chosen == (ANSWER,)
    implicit = parsed({"chosen": [Q, A], "rejected": [Q, other]}, "preference")
    repeated = parsed({"prompt": "Q", "chosen": [Q, A], "rejected": [Q, other]}, "preference")
    assert implicit == repeated == explicit


def test_preference_as_openai_writes_it() -> None:
    other = {"role": "assistant", "content": "B"}
    row = {"input": {"messages": [Q]}, "preferred_completion": [A], "non_preferred_completion": [other]}
    assert parsed(row, "preference") == parsed({"prompt": [Q], "chosen": [A], "rejected": [other]}, "preference")


IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("prompt_completion", {"prompt": "P"}, "no 'completion' among the keys prompt"),
    ("prompt_completion", {"prompt": "P", "completion": None}, "'completion': null"),
    ("prompt_completion", {"prompt": "P", "completion": " \n"}, "an empty 'completion'"),
    ("prompt_completion", {"prompt": 3, "completion": "C"}, r"prompt: 3 \(int\)"),
    ("prompt_completion", {"prompt": [Q], "completion": "C"}, "prompt as messages and completion as text"),
    ("prompt_completion", {"prompt": "P", "completion": 7}, r"completion: 7 \(int\)"),
    ("preference", {"prompt": "P", "chosen": 5, "rejected": "C"}, r"chosen: 5 \(int\)"),
    ("preference", {"prompt": "P", "chosen": "C", "rejected": True}, r"rejected: True \(bool\)"),
    ("messages", {"messages": [{"role": "user", "content": 3}, A]}, r"content 3 \(int\) in messages\[0\]"),
    ("text", {"text": ""}, "an empty 'text'"),
    ("alpaca", {"instruction": "I"}, "no 'output'"),
    ("alpaca", {"instruction": "I", "output": "O", "history": [["a", "b"]]}, "`history`"),
    ("messages", {"messages": []}, "messages: an empty list"),
    ("messages", {"messages": "hello"}, "messages: 'hello'"),
    ("messages", {"messages": [Q]}, "a conversation without an answer"),
    ("messages", {"messages": [Q, {"role": "assistant", "content": ""}]}, r"an empty answer in messages\[1\]"),
    ("messages", {"messages": [{"role": "usr", "content": "Q"}, A]}, r"the role 'usr' in messages\[0\]"),
    ("messages", {"messages": [Q, {**A, "weight": 0.5}]}, "weight 0.5"),
    ("messages", {"messages": [{**Q, "weight": 1}, A]}, "weight 1 on a user message"),
    ("messages", {"messages": [IMAGE, A]}, r"content \[.*in messages\[0\]"),
    ("messages", {"messages": [Q, A], "tools": "x"}, "tools: 'x'"),
    ("sharegpt", {"conversations": [{"from": "alien", "value": "Q"}]}, r"from: 'alien' in conversations\[0\]"),
    ("sharegpt", {"conversations": [{"from": "human", "value": 3}]}, "content 3"),
    ("preference", {"prompt": "P", "chosen": "C", "rejected": "C"}, "the same answer"),
    ("preference", {"chosen": "ab", "rejected": "abc"}, "only the beginning"),
    ("preference", {"prompt": "P", "chosen": [Q, A], "rejected": "C"}, "one answer as text and one as messages"),
    ("preference", {"prompt": "P", "chosen": "C"}, "no 'rejected'"),
    ("preference", {"input": "x", "preferred_completion": [A], "non_preferred_completion": [A]}, "input: 'x'"),
]


@pytest.mark.parametrize(("data_format", "row", "found"), BAD)
def test_bad_rows_say_what_was_found_and_how_to_mend_it(data_format: str, row: dict[str, Any], found: str) -> None:
    with pytest.raises(BadRowError, match=found) as caught:
        parsed(row, data_format)
    assert caught.value.allowed
    assert caught.value.hint.endswith((".", "}]."))
    if "(int)" in str(caught.value) or "(bool)" in str(caught.value):
        # a number or a switch was meant as text, whatever other rows hold
        assert caught.value.hint == "Write the value as text: in JSON in quotes."


def test_a_template_with_a_column_the_row_lacks() -> None:
    with pytest.raises(BadRowError, match="no 'question' among the keys completion"):
        parsed({"completion": "C"}, "prompt_completion", template="{question}")
