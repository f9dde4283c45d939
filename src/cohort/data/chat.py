"""Rendering conversations with the model's own chat template, and finding the trained characters by rendering prefixes.

A template's markup is unknown to us and few templates mark the answers. So the text of answer i is what rendering
messages 1..i adds to rendering messages 1..i-1 with the generation prompt, which is what a server would ask the
model to go on from. This needs each rendering to begin with the shorter one; a template that rewrites earlier turns
(drops their reasoning, moves the system text) fails the test and the row is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.data.chat_templates import known_templates, template_text, with_variables
from cohort.data.examples import Conversation, Message
from cohort.data.masking import RenderedRow
from cohort.data.problems import BadRowError, ProblemKind
from cohort.models.known_tokenizer import answer_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "ChatRenderer",
    "RENDERING_DATE",
    "require_chat_template",
    "unknown_end_of_answers",
    "use_chat_template",
]

RENDERING_DATE = datetime(2024, 7, 26)
"""The date that templates get (Llama 3.1's own default): tokens must not depend on the day they are made."""


def use_chat_template(
    tokenizer: PreTrainedTokenizerBase, choice: str | None, variables: Mapping[str, Any] | None = None
) -> None:
    """Give the tokenizer the template that ``dataset.chat_template`` chooses; None leaves it its own.

    Args:
        variables: ``dataset.chat_template_kwargs``. They are written into the template, so that those who ask the
            adapter later, with the tokenizer next to it, ask as in training; what a caller gives goes before them.
    """
    if choice is not None:
        tokenizer.chat_template = template_text(choice)
    own = tokenizer.chat_template
    if not variables or not own:
        return
    if isinstance(own, dict):
        tokenizer.chat_template = {name: with_variables(text, variables) for name, text in own.items()}
    else:
        tokenizer.chat_template = with_variables(own, variables)


def require_chat_template(tokenizer: PreTrainedTokenizerBase, *, found_format: str, where: Place) -> None:
    """Check that conversations can be rendered.

    Raises:
        InputError: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        name = tokenizer.name_or_path or "unnamed"
        raise InputError(
            Problem(
                where=where,
                found=f"chat rows ({found_format}) and a tokenizer without a chat template ({name})",
                allowed="a tokenizer with a chat template, or prompt and completion as text",
                hint="Use the instruction-tuned model's directory, choose a template (dataset.chat_template: "
                f"{' | '.join(known_templates())}), or write the rows as prompt and completion.",
            )
        )


@dataclass(frozen=True, kw_only=True)
class ChatRenderer:
    """Renders conversations with one tokenizer's template.

    Attributes:
        tokenizer: Gives the template and its special tokens.
        completion_only_loss: False trains every character, so no prefix needs to hold.
        last_turn_only: Of the answers that are trained, only the last one is.
        variables: What the template reads besides messages and tools, before what it has itself.
    """

    tokenizer: PreTrainedTokenizerBase
    completion_only_loss: bool = True
    last_turn_only: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)

    def render(self, conversation: Conversation) -> RenderedRow:
        """Return the conversation's text, its trained characters, and the prompt and reference of its last answer.

        The trained characters of an answer end with the template's end-of-turn token; white space behind that token is
        the template's, since generation stops before it. Where the template writes no such token after a last,
        trained answer, ``append_eos`` asks for the end-of-sequence token.

        Raises:
            BadRowError: the template refuses the conversation, or a shorter rendering is not a prefix of a longer one.
            InputError: the template is no Jinja.
        """
        messages, tools = conversation.messages, conversation.tools
        full = self._text(messages, tools=tools, generation_prompt=False)
        places = [place for place, message in enumerate(messages) if message.trained]
        if self.last_turn_only:
            places = places[-1:]
        asked = max(
            (p for p, message in enumerate(messages) if message.role == "assistant" and p > 0),
            key=lambda p: (messages[p].trained, p),
            default=None,
        )
        prompt = "" if asked is None else self._text(messages[:asked], tools=tools, generation_prompt=True)
        reference = "" if asked is None else messages[asked].content
        if not self.completion_only_loss:
            closed = self._end_of_turn(full, content=messages[-1].content)[1]
            spans: list[tuple[int, int]] = [(0, len(full))]
        else:
            closed, spans = True, []
            for place in places:
                start, end, closed = self._answer_span(full, messages=messages, place=place, tools=tools)
                spans.append((start, end))
        ends_trained = messages[-1].role == "assistant" and (messages[-1].trained or not self.completion_only_loss)
        return RenderedRow(
            text=full,
            trained_spans=tuple(spans),
            add_special_tokens=False,
            append_eos=ends_trained and not closed,
            prompt=prompt,
            reference=reference,
        )

    def prompt(self, conversation: Conversation) -> str:
        """Return the text that the model answers a conversation from, as :meth:`render` begins its last answer.

        Raises:
            BadRowError: the template refuses the conversation.
        """
        return self._text(conversation.messages, tools=conversation.tools, generation_prompt=True)

    def unknown_end(self) -> str | None:
        """Return the words that the template ends an answer with where they are no token of the tokenizer's.

        The end-of-sequence token is trained behind them; None where a token of the template ends an answer, where
        nothing does, and where the template refuses a question with its answer.
        """
        asked = Message(role="user", content="Q", trained=False)
        answered = Message(role="assistant", content="A", trained=True)
        try:
            row = self.render(Conversation(messages=(asked, answered)))
        except (BadRowError, InputError):
            return None
        if not row.append_eos or not row.trained_spans:
            return None
        start, end = row.trained_spans[-1]
        return row.text[start:end].strip().removeprefix(answered.content).strip() or None

    def _answer_span(
        self, full: str, *, messages: Sequence[Message], place: int, tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[int, int, bool]:
        """Return where the answer at ``place`` begins and ends, and whether an end-of-turn token closes it."""
        if place == 0:
            raise BadRowError(
                found="a conversation that starts with a trained answer",
                allowed="a system or user message before the first trained answer",
                hint='Add the message it answers, or give the answer "weight": 0.',
            )
        before = self._text(messages[:place], tools=tools, generation_prompt=True)
        after = self._text(messages[: place + 1], tools=tools, generation_prompt=False)
        if not after.startswith(before):
            raise _not_a_prefix(shorter=before, longer=after, turn=place + 1, with_prompt=True)
        if not full.startswith(after) and self.tokenizer.eos_token:
            # some templates close the whole text, not each turn, with the end-of-sequence token (Phi-4-mini)
            after = after.removesuffix(str(self.tokenizer.eos_token))
        if not full.startswith(after):
            raise _not_a_prefix(shorter=after, longer=full, turn=place + 1, with_prompt=False)
        length, closed = self._end_of_turn(after[len(before) :], content=messages[place].content)
        return len(before), len(before) + length, closed

    def _end_of_turn(self, answer: str, *, content: str) -> tuple[int, bool]:
        """Return how many characters of ``answer`` to train, and whether they end in a token that closes turns."""
        # only what the template wrote behind the content counts: content may end in a token of its own (</think>)
        content_end = answer.rfind(content.strip())
        closing_start = content_end + len(content.strip()) if content.strip() and content_end >= 0 else 0
        stripped = answer.rstrip()
        for token in self._added_tokens:
            if stripped.endswith(token) and len(stripped) - len(token) >= closing_start:
                return len(stripped), True
        return len(answer), False

    @cached_property
    def _added_tokens(self) -> tuple[str, ...]:
        # once per renderer: vocabularies with hundreds of added tokens take longer to list than a row to render
        added = [token.content for token in self.tokenizer.added_tokens_decoder.values()]
        return tuple(sorted(token for token in {*added, *self.tokenizer.all_special_tokens} if token.strip()))

    def _text(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None, generation_prompt: bool
    ) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                [message.for_template() for message in messages],
                tools=None if tools is None else [dict(tool) for tool in tools],
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **{"strftime_now": RENDERING_DATE.strftime, **self.variables},
            )
        except ImportError as error:
            raise InputError(
                Problem(
                    where="chat template",
                    found="no package jinja2",
                    allowed="jinja2 installed, which transformers renders chat templates with",
                    hint="Run: pip install jinja2",
                )
            ) from error
        # the template is a program we did not write: it may raise anything, and its message is for the user
        except Exception as error:
            if type(error).__name__ == "TemplateSyntaxError":
                raise _not_jinja(error) from error
            roles = ", ".join(message.role for message in messages)
            raise BadRowError(
                kind=ProblemKind.TEMPLATE,
                found=f"a conversation ({roles}) that the chat template refuses: {error}",
                allowed="roles and fields in the order the model's template expects",
                hint="Change the conversation as the template's message says.",
            ) from error
        return str(text)


def unknown_end_of_answers(tokenizer: Any) -> tuple[str | None, int]:
    """Return :meth:`ChatRenderer.unknown_end` of a tokenizer's template, and how many tokens these words are."""
    found: Sequence[Any] = answer_of(tokenizer, "unknown end of answers", _unknown_end)
    # a list where it was kept as JSON
    return found[0], found[1]


def _unknown_end(tokenizer: Any) -> tuple[str | None, int]:
    end = ChatRenderer(tokenizer=tokenizer).unknown_end()
    return end, 0 if end is None else len(tokenizer(end, add_special_tokens=False, verbose=False)["input_ids"])


def _not_jinja(error: Exception) -> InputError:
    """Return the problem of a template that is wrong by itself, whatever the rows are."""
    return InputError(
        Problem(
            where=Place(key=("dataset", "chat_template")),
            found=f"a template that is not Jinja (line {getattr(error, 'lineno', 1)}: {error})",
            allowed=f"a Jinja template, or one of {', '.join(known_templates())}",
            hint="Correct the template at that line.",
        )
    )


def _not_a_prefix(*, shorter: str, longer: str, turn: int, with_prompt: bool) -> BadRowError:
    same = next(
        (i for i, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a != b), min(len(shorter), len(longer))
    )
    begin = max(0, same - 12)
    cut, whole = shorter[begin : same + 24], longer[begin : same + 24]
    if with_prompt:
        what = f"up to the generation prompt of turn {turn} it has {cut!r} where the answered turn has {whole!r}"
    else:
        what = f"up to turn {turn} it has {cut!r} where the whole conversation has {whole!r}"
    return BadRowError(
        kind=ProblemKind.TEMPLATE,
        found=f"a chat template that rewrites earlier text: {what}",
        allowed="a template whose shorter rendering begins the longer one, else the mask would be a guess",
        hint='Give earlier answers "weight": 0, write one row per answer, or set completion_only_loss: false.',
    )
