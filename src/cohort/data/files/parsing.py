"""One row of a known format -> one typed example, or a :class:`BadRowError` that says what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cohort.data.examples import (
    Conversation,
    Example,
    LabelledAnswer,
    Message,
    PlainText,
    PreferencePair,
    PromptCompletion,
)
from cohort.data.files.media import require_text
from cohort.data.files.messages import parse_messages, parse_sharegpt, parse_tools, with_system
from cohort.data.files.named_row import NamedRow, filled_in, messages_in, present, string_in
from cohort.data.problems import BadRowError
from cohort.data.setting_refusals import template_fields

_MESSAGES = '[{"role": "user", "content": "Q"}]'

__all__ = ["alpaca_prompt", "parse_prompt", "parse_row"]


def parse_row(values: NamedRow, *, original: Mapping[str, Any], data_format: str, template: str | None) -> Example:
    """Return the example in ``values``; the template may also name columns of the ``original`` row.

    Raises:
        BadRowError: a key is missing, has another type, or the row has no answer, or images.
    """
    require_text(original)
    if data_format == "messages":
        return _conversation(messages_in(values, "messages"), values=values)
    if data_format == "sharegpt":
        turns = parse_sharegpt(present(values, "conversations"), key=values.name("conversations"))
        return _conversation(with_system(turns, values.get("system"), key=values.name("system")), values=values)
    if data_format == "alpaca":
        return _alpaca(values, original=original, template=template)
    if data_format == "text":
        return PlainText(text=filled_in(values, "text"))
    if data_format == "preference":
        return _differing(_preference(values))
    if data_format == "unpaired_preference":
        return _labelled(values)
    return _prompt_completion(values, original=original, template=template)


def parse_prompt(
    values: NamedRow, *, original: Mapping[str, Any], data_format: str, template: str | None
) -> PromptCompletion | Conversation:
    """Return what a row asks, in the format of the rows a model was trained on; the row needs no answer.

    In every format a row may have a ``prompt`` instead: a text, or messages. An answer is left out: the last message
    if it is the assistant's, or the completion, which is empty in what is returned.

    Raises:
        BadRowError: a key is missing or has another type, or the row asks nothing.
    """
    require_text(original)
    key = {"messages": "messages", "sharegpt": "conversations"}.get(data_format)
    if key is not None and (values.get(key) is not None or values.get("prompt") is None):
        messages = messages_in(values, key) if key == "messages" else parse_sharegpt(present(values, key), key=key)
        messages = with_system(messages, values.get("system"), key=values.name("system"))
        return _asking(messages, values=values, key=key)
    if isinstance(values.get("prompt"), list):
        return _asking(messages_in(values, "prompt"), values=values, key="prompt")
    instruction = values.get("instruction") is not None or values.get("prompt") is None
    if data_format == "alpaca" and template is None:
        if not instruction:
            return PromptCompletion(prompt=alpaca_prompt(filled_in(values, "prompt")), completion="")
        return PromptCompletion(prompt=_alpaca_prompt(values), completion="")
    if template is not None:
        known, fields = _with_original(values, original), set(template_fields(template))
        # a prompt is one text: it can fill the only field of a template
        if len(fields) == 1 and not fields & known.keys() and known.get("prompt") is not None:
            known = NamedRow({**known, fields.pop(): known["prompt"]}, names=values.names)
        return PromptCompletion(prompt=_from_template(template, values=known), completion="")
    is_text = data_format == "text" and values.get("prompt") is None
    return PromptCompletion(prompt=filled_in(values, "text" if is_text else "prompt"), completion="")


def _asking(messages: tuple[Message, ...], *, values: NamedRow, key: str) -> Conversation:
    asked = messages[:-1] if messages[-1].role == "assistant" else messages
    if not asked:
        raise BadRowError(
            found=f"no message before the answer in {values.name(key)}",
            allowed="at least one message to answer",
            hint="Add the user's message, or remove the row.",
        )
    return Conversation(messages=tuple(replace(message, trained=False) for message in asked), tools=_tools(values))


def _conversation(messages: tuple[Message, ...], *, values: NamedRow) -> Conversation:
    if not any(message.role == "assistant" for message in messages):
        raise BadRowError(
            found="a conversation without an answer",
            allowed="at least one assistant message",
            hint="Add the answer, or remove the row.",
        )
    return Conversation(messages=messages, tools=_tools(values))


def _tools(values: NamedRow) -> tuple[Mapping[str, Any], ...] | None:
    return parse_tools(values.get("tools"), key=values.name("tools"))


def _prompt_completion(
    values: NamedRow, *, original: Mapping[str, Any], template: str | None
) -> PromptCompletion | Conversation:
    if template is not None:
        prompt = _from_template(template, values=_with_original(values, original))
        return PromptCompletion(prompt=prompt, completion=filled_in(values, "completion"))
    if isinstance(values.get("prompt"), list) or isinstance(values.get("completion"), list):
        _require_one_form(values, "prompt", "completion")
        asked, answered = messages_in(values, "prompt"), messages_in(values, "completion")
        context = tuple(replace(message, trained=False) for message in asked)
        _conversation(answered, values=values)
        return _conversation((*context, *answered), values=values)
    return PromptCompletion(prompt=string_in(values, "prompt"), completion=filled_in(values, "completion"))


def _with_original(values: NamedRow, original: Mapping[str, Any]) -> NamedRow:
    """Return the row under our names and under its own, which a template may use alike."""
    return NamedRow({**values, **original}, names=values.names)


def _from_template(template: str, *, values: NamedRow) -> str:
    fields = {}
    for name in template_fields(template):
        value = present(values, name)
        if not isinstance(value, str | int | float):
            raise BadRowError(
                found=f"{values.name(name)}: {value!r:.60} ({type(value).__name__})",
                allowed="a string or a number, since prompt_template uses it",
                hint="Write the value as text.",
            )
        fields[name] = str(value)
    return template.format_map(fields)


def alpaca_prompt(instruction: str, *, given: str = "", system: str = "") -> str:
    """Return Stanford Alpaca's prompt for an instruction and its optional input; ``system`` replaces the preamble.

    Source: tatsu-lab/stanford_alpaca, ``train.py`` (PROMPT_DICT), with a line break after ``### Response:`` as Axolotl
    and LLaMA-Factory write it, so that prompt and answer never share a token.
    """
    if given:
        preamble = (
            "Below is an instruction that describes a task, paired with an input that provides further context. "
            "Write a response that appropriately completes the request."
        )
        body = f"### Instruction:\n{instruction}\n\n### Input:\n{given}\n\n### Response:\n"
    else:
        preamble = (
            "Below is an instruction that describes a task. Write a response that appropriately completes the request."
        )
        body = f"### Instruction:\n{instruction}\n\n### Response:\n"
    return f"{system or preamble}\n\n{body}"


def _alpaca(values: NamedRow, *, original: Mapping[str, Any], template: str | None) -> PromptCompletion:
    if values.get("history"):
        raise BadRowError(
            found="an alpaca row with `history`",
            allowed="instruction, input, output and system",
            hint="Write rows of several turns in the messages format.",
        )
    completion = filled_in(values, "output")
    if template is not None:
        return PromptCompletion(
            prompt=_from_template(template, values=_with_original(values, original)), completion=completion
        )
    return PromptCompletion(prompt=_alpaca_prompt(values), completion=completion)


def _alpaca_prompt(values: NamedRow) -> str:
    given = string_in(values, "input") if values.get("input") is not None else ""
    system = string_in(values, "system") if values.get("system") is not None else ""
    return alpaca_prompt(filled_in(values, "instruction"), given=given, system=system)


def _labelled(values: NamedRow) -> LabelledAnswer:
    label = present(values, "label")
    if not isinstance(label, bool):
        raise BadRowError(
            found=f"{values.name('label')}: {label!r:.60} ({type(label).__name__})",
            allowed="true (an answer to learn) or false (one to avoid)",
            hint="Write true or false, without quotes.",
        )
    return LabelledAnswer(answer=_prompt_completion(values, original={}, template=None), is_desirable=label)


def _differing(pair: PreferencePair) -> PreferencePair:
    if pair.chosen == pair.rejected:
        raise BadRowError(
            found="the same answer as chosen and rejected",
            allowed="two different answers",
            hint="Remove the row; it says nothing about preference.",
        )
    if not pair.chosen or not pair.rejected:
        raise BadRowError(
            found="one answer that is only the beginning of the other",
            allowed="two answers that differ after what they share",
            hint="Write the shared part as `prompt`.",
        )
    return pair


def _preference(values: NamedRow) -> PreferencePair:
    if values.get("preferred_completion") is not None or values.get("non_preferred_completion") is not None:
        return _openai_preference(values)
    chosen, rejected = _answer(values, "chosen"), _answer(values, "rejected")
    if isinstance(chosen, str) and isinstance(rejected, str):
        if values.get("prompt") is None:
            prompt, chosen, rejected = _shared_text(chosen, rejected)
            return PreferencePair(prompt=prompt, chosen=chosen, rejected=rejected)
        return PreferencePair(prompt=string_in(values, "prompt"), chosen=chosen, rejected=rejected)
    if isinstance(chosen, str) or isinstance(rejected, str):
        raise BadRowError(
            found="one answer as text and one as messages",
            allowed="two strings, or two message lists",
            hint="Write chosen and rejected in the same form.",
        )
    asked = _asked(values.get("prompt"), key=values.name("prompt"))
    if not asked:
        asked, chosen, rejected = _shared_messages(chosen, rejected)
    elif chosen[: len(asked)] == asked and rejected[: len(asked)] == asked:
        # UltraFeedback repeats the prompt in both answers
        chosen, rejected = chosen[len(asked) :], rejected[len(asked) :]
    return PreferencePair(prompt=asked, chosen=chosen, rejected=rejected, tools=_tools(values))


def _require_one_form(values: NamedRow, *keys: str) -> None:
    """Refuse a row with a text where its other column is a list of messages."""
    # in a table messages are the text of a JSON list
    is_text = {key: isinstance(text := present(values, key), str) and text.lstrip()[:1] != "[" for key in keys}
    if not any(is_text.values()):
        return
    found = " and ".join(f"{values.name(key)} as {'text' if text else 'messages'}" for key, text in is_text.items())
    raise BadRowError(
        found=found,
        allowed=f"two strings, or two lists of messages ({_MESSAGES})",
        hint="Write both columns in the same form.",
    )


def _answer(values: NamedRow, key: str) -> str | tuple[Message, ...]:
    # a number or a switch was meant as text: no list of messages looks like it
    if isinstance(present(values, key), str | int | float):
        return filled_in(values, key)
    messages = messages_in(values, key)
    _conversation(messages, values=NamedRow({}))
    return messages


def _asked(prompt: Any, *, key: str) -> tuple[Message, ...]:
    if prompt is None or prompt == "":
        return ()
    if isinstance(prompt, str):
        return (Message(role="user", content=prompt, trained=False),)
    return tuple(replace(message, trained=False) for message in parse_messages(prompt, key=key))


def _openai_preference(values: NamedRow) -> PreferencePair:
    given = present(values, "input")
    if not isinstance(given, Mapping):
        raise BadRowError(
            found=f"{values.name('input')}: {given!r:.60}",
            allowed='{"messages": [...]}',
            hint="Put the prompt's messages under input.messages.",
        )
    inner = NamedRow(given)
    asked = _asked(present(inner, "messages"), key="prompt")
    chosen, rejected = messages_in(values, "preferred_completion"), messages_in(values, "non_preferred_completion")
    return PreferencePair(prompt=asked, chosen=chosen, rejected=rejected, tools=_tools(inner))


def _shared_text(chosen: str, rejected: str) -> tuple[str, str, str]:
    """Split off what both answers begin with, except a space before the difference (as TRL's ``extract_prompt``)."""
    length = 0
    for left, right in zip(chosen, rejected, strict=False):
        if left != right:
            break
        length += 1
    if length and chosen[length - 1] == " ":
        length -= 1
    return chosen[:length], chosen[length:], rejected[length:]


def _shared_messages(
    chosen: tuple[Message, ...], rejected: tuple[Message, ...]
) -> tuple[tuple[Message, ...], tuple[Message, ...], tuple[Message, ...]]:
    length = 0
    for left, right in zip(chosen, rejected, strict=False):
        if left != right:
            break
        length += 1
    shared = tuple(replace(message, trained=False) for message in chosen[:length])
    return shared, chosen[length:], rejected[length:]
