"""Message lists in the forms that are in use become one form; a wrong message is named by its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cohort.data.files.messages import parse_messages, parse_sharegpt, parse_tools, with_system
from cohort.data.problems import BadRowError

TURNS = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]


def test_only_assistant_turns_are_trained_unless_their_weight_is_0() -> None:
    messages = parse_messages([*TURNS, {"role": "assistant", "content": "B", "weight": 0}], key="messages")
    assert [(message.role, message.content, message.trained) for message in messages] == [
        ("user", "Q", False),
        ("assistant", "A", True),
        ("assistant", "B", False),
    ]


def test_a_csv_cell_holds_the_list_as_json() -> None:
    assert parse_messages(json.dumps(TURNS), key="messages") == parse_messages(TURNS, key="messages")


def test_text_parts_are_joined_and_tool_calls_keep_parsed_arguments() -> None:
    call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    (said, called) = parse_messages(
        [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ],
        key="messages",
    )
    assert (said.content, called.content) == ("ab", "")
    assert called.extra["tool_calls"][0]["function"]["arguments"] == {"a": 1}


def test_sharegpt_names_become_roles() -> None:
    turns = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]
    assert [message.role for message in parse_sharegpt(turns, key="c")] == ["user", "assistant"]
    assert parse_sharegpt(TURNS, key="c") == parse_messages(TURNS, key="c")


def test_a_rows_system_text_comes_first_unless_there_is_one() -> None:
    messages = parse_messages(TURNS, key="messages")
    assert [message.role for message in with_system(messages, "S", key="system")] == ["system", "user", "assistant"]
    assert with_system(messages, "", key="system") == with_system(messages, None, key="system") == messages
    begun = with_system(messages, "S", key="system")
    assert with_system(begun, "T", key="system") == begun


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("words", "m: 'words'"),
        ([], "m: an empty list"),
        ([{"role": "usr", "content": "Q"}], "the role 'usr' in m[0]"),
        ([*TURNS, {"role": "user", "content": 3}], "content 3 (int) in m[2]"),
        ([{"role": "user", "content": "Q", "weight": 1}], "weight 1 on a user message in m[0]"),
        ([{"role": "assistant", "content": "A", "weight": 2}], "weight 2 in m[0]"),
        ([{"role": "assistant", "content": " "}], "an empty answer in m[0]"),
        ([{"role": "assistant", "content": "A", "tool_calls": "f"}], "tool_calls 'f' in m[0]"),
    ],
)
def test_a_message_that_is_refused(value: Any, found: str) -> None:
    with pytest.raises(BadRowError) as caught:
        parse_messages(value, key="m")
    assert caught.value.found == found
    assert caught.value.hint


def test_other_lists_that_are_refused() -> None:
    with pytest.raises(BadRowError, match="from: 'bot' in c"):
        parse_sharegpt([{"from": "bot", "value": "A"}], key="c")
    with pytest.raises(BadRowError, match="own: 3"):
        with_system(parse_messages(TURNS, key="m"), 3, key="own")
    assert parse_tools("", key="t") is None
    with pytest.raises(BadRowError, match="t: 'f'"):
        parse_tools("f", key="t")
