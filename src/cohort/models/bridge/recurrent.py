"""Gives recurrent layers the bounds of the sequences in a stream: state that runs on over one is a leak.

The functions are transformers' torch forms, which know no bounds; each sequence goes through them by itself. What is
around them (projections, norms, gates) works row by row and sees the whole stream.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from cohort.models.bridge.pass_state import current_pass

__all__ = ["bound_recurrent_functions"]

# by the name in a modeling file, the axis of its operands that counts rows
_ROW_AXES: Mapping[str, int] = {
    "causal_conv1d_fn": 2,
    "chunk_gated_delta_rule": 1,
    "torch_chunk_gated_delta_rule": 1,
}
# what says the same to other implementations
_OTHER_BOUNDS = ("cu_seqlens", "seq_idx")
_MARK = "_cohort_bounds"


def bound_recurrent_functions(model: nn.Module) -> None:
    """Let the recurrent functions that a model's layers call see the sequences of a packed pass.

    A layer calls them by their names in its own file, so they are replaced there, once. Without a packed pass they
    are what they were, for every other model of this process.
    """
    files = {type(module).__module__ for module in model.modules()}
    for name in files:
        if not name.startswith("transformers.models."):
            continue
        file = sys.modules[name]
        for function, axis in _ROW_AXES.items():
            found = getattr(file, function, None)
            if callable(found) and not hasattr(found, _MARK):
                setattr(file, function, _by_sequence(found, axis))


def _by_sequence(function: Callable[..., Any], axis: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(x: Tensor, *arguments: Any, **options: Any) -> Any:
        now = current_pass()
        if now is None or now.attention is None:
            return function(x, *arguments, **options)
        num_rows = x.shape[axis]
        ends = now.attention.sequence_offsets
        # rows behind the last sequence are of none: one more piece, which none of the others sees
        bounds = [*ends, num_rows] if ends[-1] < num_rows else list(ends)
        given = {name: value for name, value in options.items() if name not in _OTHER_BOUNDS}
        pieces = []
        for start, stop in pairwise(bounds):
            if start == stop:
                continue

            def cut(value: Any, start: int = start, stop: int = stop) -> Any:
                has_rows = isinstance(value, Tensor) and value.dim() > axis and value.shape[axis] == num_rows
                return value.narrow(axis, start, stop - start) if has_rows else value

            own = {name: cut(value) for name, value in given.items()}
            pieces.append(function(cut(x), *map(cut, arguments), **own))
        if isinstance(pieces[0], tuple):
            # what follows the output is a state for the next tokens, which no packed pass keeps
            return torch.cat([piece[0] for piece in pieces], dim=axis), pieces[-1][1]
        return torch.cat(pieces, dim=axis)

    setattr(run, _MARK, True)
    return run
