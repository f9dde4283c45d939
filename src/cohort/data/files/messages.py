"""Parsing message lists: the roles, names and content forms in use, brought to one form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cohort.data.examples import Message
from cohort.data.problems import BadRowError

__all__ = [
    "ROLES",
    "SHAREGPT_ROLES",
    "parse_messages",
    "parse_sharegpt",
    "parse_tools",
    "with_parsed_arguments",
    "with_system",
]

ROLES = ("system", "developer", "user", "assistant", "tool")
SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}

_LIST_HINT = 'Write a list such as [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}].'


def parse_messages(value: Any, *, key: str) -> tuple[Message, ...]:
    """Return the messages of a list of ``{"role", "content", "weight"?}`` objects, or of its JSON text, as in CSV.

    Raises:
        BadRowError: anything in it is not as the format says; the first such message is named.
    """
    messages = []
    for number, item in enumerate(_as_list(value, key=key)):
        place = f"{key}[{number}]"
        role = item.get("role")
        if role not in ROLES:
            raise BadRowError(found=f"the role {role!r} in {place}", allowed=", ".join(ROLES), hint=_role_hint(role))
        extra = {
            name: entry
            for name, entry in item.items()
            if name not in ("role", "content", "weight") and entry is not None
        }
        if "tool_calls" in extra:
            extra["tool_calls"] = with_parsed_arguments(extra["tool_calls"], place=place)
        content = _content(item.get("content"), place=place, may_be_missing="tool_calls" in extra)
        trained = _weight(item.get("weight"), role=role, place=place)
        messages.append(_with_answer(Message(role=role, content=content, trained=trained, extra=extra), place=place))
    return tuple(messages)


def parse_sharegpt(value: Any, *, key: str) -> tuple[Message, ...]:
    """Return the messages of a ShareGPT list of ``{"from", "value", "weight"?}``.

    Items that already use ``role`` and ``content`` are taken as they are.

    Raises:
        BadRowError: anything in it is not as the format says.
    """
    items = _as_list(value, key=key)
    if items and all("role" in item for item in items):
        return parse_messages(items, key=key)
    return tuple(_sharegpt_message(item, place=f"{key}[{n}]") for n, item in enumerate(items))


def with_system(messages: tuple[Message, ...], system: Any, *, key: str) -> tuple[Message, ...]:
    """Return the messages after the row's own system text, if it has one and they do not begin with another.

    Raises:
        BadRowError: it is no text.
    """
    if system is None or system == "" or messages[0].role == "system":
        return messages
    if not isinstance(system, str):
        raise BadRowError(
            found=f"{key}: {_short(system)}", allowed="a string", hint="Write the system text as a string."
        )
    return (Message(role="system", content=system, trained=False), *messages)


def _sharegpt_message(item: Mapping[str, Any], *, place: str) -> Message:
    sender = item.get("from")
    role = SHAREGPT_ROLES.get(sender) if isinstance(sender, str) else None
    if role is None:
        raise BadRowError(
            found=f"from: {sender!r} in {place}",
            allowed=", ".join(SHAREGPT_ROLES),
            hint="Use human and gpt for the two sides.",
        )
    content = _content(item.get("value"), place=place, may_be_missing=False)
    trained = _weight(item.get("weight"), role=role, place=place)
    return _with_answer(Message(role=role, content=content, trained=trained), place=place)


def parse_tools(value: Any, *, key: str = "tools") -> tuple[Mapping[str, Any], ...] | None:
    """Return a row's ``tools`` (a list of objects or its JSON text), or None where it has none.

    Raises:
        BadRowError: it is something else.
    """
    if value is None or value == "" or value == []:
        return None
    return tuple(_as_list(value, key=key))


def _role_hint(role: object) -> str:
    own = {"human": "user", **dict.fromkeys(("gpt", "bot", "model", "ai", "chatbot", "chatgpt", "output"), "assistant")}
    known = own.get(role.lower()) if isinstance(role, str) else None
    return f"Write {known} for {role}." if known else "Use one of these roles."


def _as_list(value: Any, *, key: str) -> list[Mapping[str, Any]]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise BadRowError(found=f"{key}: {_short(value)}", allowed="a list of objects", hint=_LIST_HINT) from None
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise BadRowError(found=f"{key}: {_short(value)}", allowed="a list of objects", hint=_LIST_HINT)
    if not value:
        raise BadRowError(
            found=f"{key}: an empty list", allowed="at least one entry", hint="Remove the row or fill it."
        )
    return value


def _content(value: Any, *, place: str, may_be_missing: bool) -> str:
    if isinstance(value, str):
        return value
    if value is None and may_be_missing:
        return ""
    if isinstance(value, list) and all(
        isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in value
    ):
        return "".join(part["text"] for part in value)
    is_scalar = isinstance(value, bool | int | float)
    raise BadRowError(
        found=f"content {_short(value)}{f' ({type(value).__name__})' if is_scalar else ''} in {place}",
        allowed="a string, or a list of text parts",
        hint="Write the value as text: in JSON in quotes."
        if is_scalar
        else "Write the content as a string; images and audio are not supported.",
    )


def _weight(value: Any, *, role: str, place: str) -> bool:
    if value is None:
        return role == "assistant"
    if isinstance(value, bool) or value not in (0, 1, "0", "1"):
        raise BadRowError(
            found=f"weight {value!r} in {place}", allowed="0 or 1", hint="Write 0 to leave the turn untrained."
        )
    if int(value) == 1 and role != "assistant":
        raise BadRowError(
            found=f"weight 1 on a {role} message in {place}",
            allowed="weight on assistant messages",
            hint="Remove the weight; only assistant turns are trained.",
        )
    return int(value) == 1


def _with_answer(message: Message, *, place: str) -> Message:
    if message.trained and not message.content.strip() and not message.extra:
        raise BadRowError(
            found=f"an empty answer in {place}",
            allowed="an answer with text",
            hint='Fill in the answer, or give it "weight": 0.',
        )
    return message


def with_parsed_arguments(calls: Any, *, place: str) -> list[Mapping[str, Any]]:
    """Return calls of tools whose arguments are objects.

    Raises:
        BadRowError: they are no objects, or their arguments no JSON.
    """
    # the OpenAI format holds arguments as JSON text, chat templates expect objects (vLLM converts alike)
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise BadRowError(
            found=f"tool_calls {_short(calls)} in {place}",
            allowed="a list of objects",
            hint="Write each call as an object.",
        )
    return [_call_with_parsed_arguments(call) for call in calls]


def _call_with_parsed_arguments(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
