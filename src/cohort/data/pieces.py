"""Long running text in pieces: windows over its tokens that overlap, each token trained once.

Shapes:  L tokens of a row
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["split_tokens"]


def split_tokens(
    tokens: NDArray[np.int32], trained: NDArray[np.bool_], *, most: int, overlap: int, first: int | None
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.bool_]]]:
    """Yield pieces of at most ``most`` tokens, each with its mask, which together train what ``trained`` [L] says.

    A piece begins with the last ``overlap`` tokens of the one before, as context that is not trained again, and with
    the token ``first`` (a beginning of sequence) if there is one. Without either, its first token is not trained, since
    nothing in the piece predicts it.

    Raises:
        ValueError: no room is left for new tokens.
    """
    begins_with_first = first is not None and len(tokens) > 0 and int(tokens[0]) == first
    head = np.asarray([first] if begins_with_first else [], dtype=np.int32)
    if most - len(head) - overlap < 1:
        raise ValueError(f"pieces of {most} tokens have no room after {len(head)} and an overlap of {overlap}")
    end = min(most, len(tokens))
    yield tokens[:end], trained[:end]
    while end < len(tokens):
        start = end - overlap
        until = min(start + most - len(head), len(tokens))
        piece = np.concatenate([head, tokens[start:until]])
        mask = np.concatenate([np.zeros(len(head), dtype=np.bool_), trained[start:until]])
        mask[: len(head) + overlap] = False
        mask[:1] = False
        yield piece, mask
        end = until
