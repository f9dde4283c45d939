"""A tokenizer for another process: as the library below transformers keeps it, which is read without transformers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.serving.text.text_decoder import keeping_texts, plain_tokenizer

__all__ = ["SentTokenizer", "StreamTexts"]


@dataclass(frozen=True, kw_only=True)
class SentTokenizer:
    """A tokenizer on its way.

    Attributes:
        library: Of the library ``tokenizers``, as JSON; empty where transformers does more than that.
        pickled: Of transformers.
    """

    library: str = ""
    pickled: bytes = b""

    @classmethod
    def of(cls, tokenizer: Any) -> SentTokenizer:
        """Return a tokenizer of transformers in its lightest form."""
        plain = plain_tokenizer(tokenizer)
        return cls(library=plain.to_str()) if plain is not None else cls(pickled=pickle.dumps(tokenizer))

    def texts(self) -> StreamTexts:
        """Return what makes texts of tokens; in the process that it was sent to."""
        if not self.library:
            return StreamTexts(pickle.loads(self.pickled))
        from tokenizers import Tokenizer

        return StreamTexts(Tokenizer.from_str(self.library))


class StreamTexts:
    """Tokens as texts.

    Attributes:
        decode: Of tokens of an answer, without special ones.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.decode: Callable[[Sequence[int]], str] = keeping_texts(
            lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=True))
        )

    def of_token(self, token: int) -> str:
        """Return the text of one token, also of a special one."""
        return str(self._tokenizer.decode([token], skip_special_tokens=False))
