"""A tokenizer's tokens as text, for every token of every answer: without what transformers does around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["keeping_texts", "plain_tokenizer", "text_decoder"]


def text_decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """Return what ``tokenizer.decode(..., skip_special_tokens=True)`` returns, for one thread."""
    decoding = plain_tokenizer(tokenizer) or tokenizer
    return keeping_texts(lambda tokens: str(decoding.decode(tokens, skip_special_tokens=True)))


def keeping_texts(decode: Callable[[list[int]], str]) -> Callable[[Sequence[int]], str]:
    """Return ``decode`` for one thread, as streams ask for it: for one token again and again, whose text is kept."""
    kept: dict[int, str] = {}

    def text(tokens: Sequence[int]) -> str:
        if len(tokens) != 1:
            return decode(list(tokens))
        token = tokens[0]
        if token not in kept:
            kept[token] = decode([token])
        return kept[token]

    return text


def plain_tokenizer(tokenizer: Any) -> Any | None:
    """Return the tokenizer of the library below, where transformers adds nothing to how it decodes; otherwise None."""
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return None
    kind = type(tokenizer)
    is_own = kind.decode is not PreTrainedTokenizerBase.decode or kind._decode is not PreTrainedTokenizerFast._decode
    # it takes out spaces before punctuation
    if is_own or tokenizer.clean_up_tokenization_spaces:
        return None
    return tokenizer.backend_tokenizer
