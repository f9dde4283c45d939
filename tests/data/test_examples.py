"""Typed rows: what a chat template gets of a message."""

from __future__ import annotations

from cohort.data.examples import Conversation, Message, PreferencePair


def test_a_template_gets_role_content_and_further_keys_but_not_what_is_trained() -> None:
    calls = [{"function": {"name": "add", "arguments": {"a": 1}}}]
    message = Message(role="assistant", content="", trained=True, extra={"tool_calls": calls, "name": "bot"})
    assert message.for_template() == {"role": "assistant", "content": "", "tool_calls": calls, "name": "bot"}


def test_a_template_may_change_its_copy() -> None:
    message = Message(role="user", content="2+2=", trained=False, extra={"name": "ada"})
    given = message.for_template()
    given["content"] = "changed"
    del given["name"]
    assert message.for_template() == {"role": "user", "content": "2+2=", "name": "ada"}


def test_equal_rows_are_found_by_comparison() -> None:
    def asked(content: str) -> Conversation:
        return Conversation(messages=(Message(role="user", content=content, trained=False),))

    assert asked("2+2=") == asked("2+2=")
    assert asked("2+2=") != asked("2+3=")
    assert PreferencePair(prompt="a", chosen="b", rejected="c") != PreferencePair(prompt="a", chosen="c", rejected="b")
