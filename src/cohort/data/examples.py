"""Typed rows: what a row says, whatever file layout it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Conversation",
    "Example",
    "LabelledAnswer",
    "Message",
    "PlainText",
    "PreferencePair",
    "PromptCompletion",
    "is_conversation",
]


@dataclass(frozen=True, kw_only=True)
class Message:
    """One turn of a conversation.

    Attributes:
        role: system, developer, user, assistant or tool.
        content: Its text; empty for a turn of tool calls only.
        trained: Whether the loss counts this turn; always False unless the role is assistant.
        extra: Further keys the chat template may read (``tool_calls``, ``name``, ``reasoning_content``, ...).
    """

    role: str
    content: str
    trained: bool
    extra: Mapping[str, Any] = field(default_factory=dict)

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates expect it."""
        return {"role": self.role, "content": self.content, **self.extra}


@dataclass(frozen=True, kw_only=True)
class PlainText:
    """Running text; every token but the first is trained."""

    text: str


@dataclass(frozen=True, kw_only=True)
class PromptCompletion:
    """Two strings that are tokenised joined; the completion is trained."""

    prompt: str
    completion: str


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages to be rendered with the model's chat template. ``tools`` are JSON schemas the template may show."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class PreferencePair:
    """A prompt with a better and a worse answer: three strings, or three tuples of messages."""

    prompt: str | tuple[Message, ...]
    chosen: str | tuple[Message, ...]
    rejected: str | tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class LabelledAnswer:
    """An answer to a prompt, and whether it is one to learn."""

    answer: PromptCompletion | Conversation
    is_desirable: bool


def is_conversation(example: Example) -> bool:
    """Return whether a chat template renders the row."""
    if isinstance(example, LabelledAnswer):
        return isinstance(example.answer, Conversation)
    if isinstance(example, PreferencePair):
        return not isinstance(example.chosen, str)
    return isinstance(example, Conversation)


Example = PlainText | PromptCompletion | Conversation | PreferencePair | LabelledAnswer
