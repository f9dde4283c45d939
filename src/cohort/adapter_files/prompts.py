"""Prompts as a run's training rows had them: an adapter answers well only what looks like what it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cohort.adapter_files.base_model import RunBase
from cohort.core.errors import InputError
from cohort.core.source_location import Place
from cohort.data.chat import ChatRenderer
from cohort.data.examples import Conversation, Message
from cohort.data.files.formats import DataFormat, renamed
from cohort.data.files.named_row import NamedRow
from cohort.data.files.parsing import alpaca_prompt, parse_prompt
from cohort.data.files.rows import RawRow
from cohort.data.problems import BadRowError
from cohort.data.setting_refusals import template_fields
from cohort.data.tokenise import encode_prompt

__all__ = ["PromptRenderer"]


@dataclass(frozen=True, kw_only=True)
class PromptRenderer:
    """Renders and encodes prompts for one run.

    Attributes:
        base: The run, whose record says how its rows were rendered: the recorded format decides, not the model.
        tokenizer: The base model's.
        is_raw: Take texts as they are, without the task's prompt template or the model's chat template.
    """

    base: RunBase
    tokenizer: Any
    is_raw: bool = False

    @property
    def is_chat(self) -> bool:
        return self.base.facts.inputs.is_chat is True and not self.is_raw

    def of_text(self, text: str) -> str:
        """Return what the model reads for one text.

        A chat model gets it as a user's message, one trained on alpaca rows as an instruction without input; it fills
        a prompt template of one field.

        Raises:
            InputError: the chat template refuses it.
        """
        if self.is_raw:
            return text
        if self.is_chat:
            return self.of_messages([Message(role="user", content=text, trained=False)])
        template = self.base.task.dataset.prompt_template
        if template is None and self.base.facts.inputs.data_format == DataFormat.ALPACA:
            return alpaca_prompt(text)
        # a prompt is one text: with several fields nothing says which one it fills
        if template is None or len(set(template_fields(template))) != 1:
            return text
        return template.format_map({template_fields(template)[0]: text})

    def of_messages(self, messages: Sequence[Message]) -> str:
        """Return what the model reads for a conversation that it is to continue.

        Raises:
            InputError: the chat template refuses it.
        """
        try:
            return ChatRenderer(tokenizer=self.tokenizer).prompt(Conversation(messages=tuple(messages)))
        except BadRowError as error:
            raise InputError(error.at(Place(text="prompt")).problem) from error

    def of_row(self, row: RawRow) -> str:
        """Return what the model reads for a row of a file, which needs no answer.

        Raises:
            BadRowError: the row asks nothing, or not in the form of the run's rows.
        """
        settings = self.base.task.dataset_settings()
        values = renamed(row.values, columns=settings.columns)
        if self.is_raw:
            return _raw_text(values)
        asked = parse_prompt(
            values,
            original=row.values,
            data_format=self.base.facts.inputs.data_format or DataFormat.PROMPT_COMPLETION.value,
            template=settings.prompt_template,
        )
        chat = ChatRenderer(tokenizer=self.tokenizer)
        if isinstance(asked, Conversation):
            if not self.is_chat:
                raise BadRowError(
                    found="messages, but the run was trained on text",
                    allowed="the prompt as text",
                    hint="Write each prompt as one text.",
                )
            return chat.prompt(asked)
        if self.is_chat:
            return chat.prompt(Conversation(messages=(Message(role="user", content=asked.prompt, trained=False),)))
        return asked.prompt

    def encode(self, text: str) -> list[int]:
        return encode_prompt(text, tokenizer=self.tokenizer, is_chat=self.is_chat)


def _raw_text(values: NamedRow) -> str:
    text = values.get("prompt", values.get("text"))
    if not isinstance(text, str) or not text:
        raise BadRowError(
            found=f"no text under {values.name('prompt')!r}",
            allowed="a row with a prompt to use as it is",
            hint="Add the prompt, or leave --raw out.",
        )
    return text
