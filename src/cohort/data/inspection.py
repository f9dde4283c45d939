"""What is trained, made visible: rows decoded from their actual tokens and masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cohort.data.tokenised import TokenisedRows

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

__all__ = ["RenderedExample", "Span", "format_example", "render_examples"]

_TRAINED_ANSI, _SPECIAL_ANSI, _RESET_ANSI = "\x1b[1;32m", "\x1b[2m", "\x1b[0m"


@dataclass(frozen=True, kw_only=True)
class Span:
    """Consecutive tokens that are treated alike.

    Attributes:
        trained: Whether the loss counts them.
        special: Whether this is one special token (BOS, end of turn, ...).
    """

    text: str
    trained: bool
    special: bool
    num_tokens: int


@dataclass(frozen=True, kw_only=True)
class RenderedExample:
    """One row as spans whose texts join to the row's text. ``source`` is ``file:line``."""

    source: str
    spans: tuple[Span, ...]

    @property
    def num_tokens(self) -> int:
        return sum(span.num_tokens for span in self.spans)

    @property
    def num_trained(self) -> int:
        """Tokens the loss counts."""
        return sum(span.num_tokens for span in self.spans if span.trained)


def render_examples(
    rows: TokenisedRows, *, tokenizer: PreTrainedTokenizerBase, count: int = 3, group_size: int = 1
) -> list[RenderedExample]:
    """Return the first ``count`` rows, or groups of rows, decoded from the token ids and masks that training reads."""
    special_ids = set(tokenizer.all_special_ids)
    special_ids |= {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    examples = []
    for index in range(min(count * group_size, len(rows))):
        sample = rows.sample(index)
        spans = _spans(sample.tokens, trained=sample.trained, special_ids=special_ids, tokenizer=tokenizer)
        kind = _kind(rows, index, group_size=group_size)
        examples.append(RenderedExample(source=f"{rows.sources[index]}{kind}", spans=tuple(spans)))
    return examples


def _kind(rows: TokenisedRows, index: int, *, group_size: int) -> str:
    """Return which answer of its row this is, where rows are compared."""
    if group_size == 2:
        return " (rejected)" if index % 2 else " (chosen)"
    return "" if not len(rows.labels) else " (desirable)" if rows.labels[index] else " (undesirable)"


def _spans(
    tokens: NDArray[np.int32], *, trained: NDArray[np.bool_], special_ids: set[int], tokenizer: PreTrainedTokenizerBase
) -> list[Span]:
    ids = [int(token) for token in tokens]
    spans: list[Span] = []
    begin, shown = 0, ""
    for end in range(1, len(ids) + 1):
        inside = end < len(ids) and trained[end] == trained[begin]
        if inside and ids[end] not in special_ids and ids[begin] not in special_ids:
            continue
        # decoded from the row's start: a piece decoded alone may lose its leading space or half a character
        upto = _decode(ids[:end], tokenizer=tokenizer)
        text = upto[len(shown) :] if upto.startswith(shown) else _decode(ids[begin:end], tokenizer=tokenizer)
        spans.append(
            Span(text=text, trained=bool(trained[begin]), special=ids[begin] in special_ids, num_tokens=end - begin)
        )
        begin, shown = end, upto
    return spans


def _decode(ids: Sequence[int], *, tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def format_example(example: RenderedExample, *, color: bool = False) -> str:
    """Return the row as text with its trained parts highlighted: in colour, or between the marks ⟦ and ⟧."""
    # a prompt to which answers are drawn has none
    trained = f"{example.num_trained} trained" if example.num_trained else "to be answered"
    parts = [f"{example.source}: {example.num_tokens} tokens, {trained}\n"]
    open_mark, close_mark = (_TRAINED_ANSI, _RESET_ANSI) if color else ("⟦", "⟧")
    is_open = False
    for span in example.spans:
        if span.trained != is_open and not color:
            parts.append(open_mark if span.trained else close_mark)
        is_open = span.trained
        if color:
            # control characters of the data must not reach the terminal
            text = _printable(span.text)
            style = (open_mark if span.trained else "") + (_SPECIAL_ANSI if span.special else "")
            parts.append(f"{style}{text}{close_mark}" if style else text)
        else:
            parts.append(_printable(span.text))
    if is_open and not color:
        parts.append(close_mark)
    return "".join(parts)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
