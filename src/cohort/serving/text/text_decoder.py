"""A tokenizer's tokens as text, for every token of every answer: without what transformers does around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["text_decoder"]


def text_decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """Return what ``tokenizer.decode(..., skip_special_tokens=True)`` returns, for one thread.

    A stream asks for one token again and again, whose text is kept, and for few tokens.
    """
    decode = _plain_decode(tokenizer) or (lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=True)))
    kept: dict[int, str] = {}

    def text(tokens: Sequence[int]) -> str:
        if len(tokens) != 1:
            return decode(list(tokens))
        token = tokens[0]
        if token not in kept:
            kept[token] = decode([token])
        return kept[token]

    return text


def _plain_decode(tokenizer: Any) -> Callable[[list[int]], str] | None:
    """Return the decoding of the library below, where transformers adds nothing to it."""
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return None
    kind = type(tokenizer)
    is_own = kind.decode is not PreTrainedTokenizerBase.decode or kind._decode is not PreTrainedTokenizerFast._decode
    # it takes out spaces before punctuation
    if is_own or tokenizer.clean_up_tokenization_spaces:
        return None
    below = tokenizer.backend_tokenizer
    return lambda tokens: str(below.decode(tokens, skip_special_tokens=True))
