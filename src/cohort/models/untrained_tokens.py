"""Whether a base model ever learned to write a token, as far as its output layer tells.

Rows of tokens that training never showed stay where they began or drift together, so that one of them is parallel to
many others (S. Land and M. Bartolo, Fishing for Magikarp, EMNLP 2024, section 3.2).

Shapes:  V vocabulary · D hidden width
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from cohort.models.checkpoint.safetensors_files import read_headers

__all__ = ["looks_untrained"]

# rows of a trained vocabulary are below 0.998 to each other in the models we looked at; untrained ones above 0.9999
_PARALLEL = 0.999
# a twin or two, such as a space of another kind, are no sign
_MANY = 8
# rows read at a time: the layer of a large vocabulary takes a gigabyte
_BLOCK_ROWS = 16384


def looks_untrained(folder: Path, token_id: int) -> bool:
    """Return whether the output row of a token is zero, or parallel to those of many other tokens.

    False where the directory has no output layer of its own or no such token.
    """
    tensors = read_headers(folder).tensors
    # a model with tied weights has the table of tokens alone
    names = [name for end in ("lm_head.weight", "embed_tokens.weight") for name in tensors if name.endswith(end)]
    if not names or not 0 <= token_id < tensors[names[0]].shape[0]:
        return False
    with safe_open(tensors[names[0]].file, framework="pt") as weights:
        table = weights.get_slice(names[0])
        row_D: Tensor = table[token_id : token_id + 1].float()[0]
        if not row_D.any():
            return True
        num_rows = table.get_shape()[0]
        num_parallel = 0
        for start in range(0, num_rows, _BLOCK_ROWS):
            block_VD: Tensor = table[start : start + _BLOCK_ROWS].float()
            cosines_V = torch.nn.functional.cosine_similarity(row_D[None], block_VD)
            num_parallel += int((cosines_V > _PARALLEL).sum())
    # the row itself is one of them
    return num_parallel - 1 >= _MANY
