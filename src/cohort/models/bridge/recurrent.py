"""Gives recurrent layers the bounds of the sequences in a stream: state that runs on over one is a leak.

transformers calls functions of other packages where they are installed (flash-linear-attention, causal-conv1d) and its
own torch forms elsewhere. A delta rule of flash-linear-attention takes bounds; its torch form gets sequences of about
one length side by side; a convolution gets empty rows between sequences, as many as it looks back. What is around them
(projections, norms, gates) works row by row and sees the whole stream.

Shapes:  T rows of the stream · B sequences of a group · L their padded length · C channels · W taps
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cohort.models.bridge.pass_state import current_pass
from cohort.models.bridge.sequence_bounds import SequenceBounds

__all__ = ["bound_recurrent_functions"]

_log = logging.getLogger(__name__)

# what says the same to other implementations
_OTHER_BOUNDS = ("cu_seqlens", "seq_idx")
_MARK = "_cohort_bounds"

Function = Callable[..., Any]


def bound_recurrent_functions(model: nn.Module) -> None:
    """Let the recurrent functions that a model's layers call see the sequences of a packed pass.

    A layer calls them by their names in its own file, so they are replaced there, once. Outside of a pass they are what
    they were, for every other model of this process. In a pass they are transformers' torch forms where other packages
    do not compute: on a CPU, and the delta rule in float32.
    """
    files = {type(module).__module__ for module in model.modules()}
    for name in files:
        if not name.startswith("transformers.models."):
            continue
        file = sys.modules[name]
        for function, bounded in _BOUNDED.items():
            found = getattr(file, function, None)
            if callable(found) and not hasattr(found, _MARK):
                setattr(file, function, _in_passes(found, bounded))


def _in_passes(function: Function, bounded: Callable[..., Any] | None) -> Function:
    @functools.wraps(function)
    def run(x: Tensor, *arguments: Any, **options: Any) -> Any:
        now = current_pass()
        if now is None:
            return function(x, *arguments, **options)
        chosen = function if _is_taken_elsewhere(x, function, bounded) else inspect.unwrap(function)
        bounds = now.sequence_bounds
        if bounds is None or bounded is None:
            return chosen(x, *arguments, **options)
        return bounded(chosen, bounds, x, *arguments, **options)

    setattr(run, _MARK, True)
    return run


def _is_taken_elsewhere(x: Tensor, function: Function, bounded: Callable[..., Any] | None) -> bool:
    """Return whether another package's function may compute ``x``; the chunked delta rule takes 16 bits alone."""
    if not x.is_cuda or bounded is not _delta_rule:
        return x.is_cuda
    return x.dtype.itemsize == 2 and _trains(function, x.device)


@functools.cache
def _trains(function: Function, device: torch.device) -> bool:
    """Return whether the delta rule behind ``function`` computes gradients on this device.

    flash-linear-attention refuses to where it knows the compiler to be wrong: on Hopper with Triton 3.4 to 3.7.0.
    """
    if not _takes_bounds(function):
        return True
    x_1THE = torch.ones(1, 64, 1, 64, dtype=torch.bfloat16, device=device, requires_grad=True)
    gate_1TH = torch.zeros(1, 64, 1, device=device)
    try:
        with torch.enable_grad():
            y_1THE = function(x_1THE, x_1THE, x_1THE, g=gate_1TH, beta=gate_1TH, use_qk_l2norm_in_kernel=True)[0]
            y_1THE.sum().backward()
    except Exception as error:  # another package's, of any kind
        _log.warning("transformers' torch form of the delta rule is used, which is slower: %s", error)
        return False
    return True


def _convolution(function: Function, bounds: SequenceBounds, x_1CT: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """Return the causal convolution [1, C, T] of each sequence; its taps [C, W] are the next argument, or named."""
    weight_CW: Tensor = arguments[0] if arguments else options["weight"]
    given = {name: value for name, value in options.items() if name not in _OTHER_BOUNDS}
    num_rows = x_1CT.shape[2]
    source, places = bounds.with_gaps(num_rows, weight_CW.shape[-1] - 1, x_1CT.device)
    zero_1C1 = x_1CT.new_zeros(1, x_1CT.shape[1], 1)
    spread = torch.cat([x_1CT, zero_1C1], dim=2).index_select(2, source)
    y_1CG: Tensor = function(spread, *arguments, **given)
    return y_1CG.index_select(2, places)


def _delta_rule(
    function: Function, bounds: SequenceBounds, q_1THE: Tensor, *arguments: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Return the gated delta rule [1, T, H, E] of each sequence, and no state."""
    given = {name: value for name, value in options.items() if name not in _OTHER_BOUNDS}
    num_rows = q_1THE.shape[1]
    # a packed pass continues no sequence and keeps no state
    given |= {"initial_state": None, "output_final_state": False}
    if _takes_bounds(function):
        offsets, on_host = bounds.offsets(num_rows, q_1THE.device)
        found: Tensor = function(q_1THE, *arguments, **given, cu_seqlens=offsets, cu_seqlens_cpu=on_host)[0]
        return found, None
    pieces, rows = [], []
    for group in bounds.groups(num_rows, q_1THE.device):

        def padded(value: Any, source_BL: Tensor = group.source_BL) -> Any:
            if not isinstance(value, Tensor) or value.dim() < 2 or value.shape[1] != num_rows:
                return value
            zero = value.new_zeros(1, *value.shape[2:])
            return torch.cat([value[0], zero])[source_BL]

        own = {name: padded(value) for name, value in given.items()}
        y_BLHE = function(padded(q_1THE), *map(padded, arguments), **own)[0]
        pieces.append(y_BLHE.flatten(0, 1).index_select(0, group.place_R))
        rows.append(group.row_R)
    order_T = torch.empty_like(whole := torch.cat(rows))
    order_T[whole] = torch.arange(num_rows, device=whole.device)
    return torch.cat(pieces).index_select(0, order_T)[None], None


@functools.cache
def _takes_bounds(function: Function) -> bool:
    """Return whether transformers hands this function on to one that takes ``cu_seqlens``."""
    if function is inspect.unwrap(function):
        return False
    return "cu_seqlens" in _applicable(function)


def _applicable(function: Function) -> frozenset[str]:
    """Return the arguments that the function behind transformers' wrapper takes, as the wrapper keeps them."""
    while hasattr(function, "__wrapped__"):
        named = inspect.getclosurevars(function).nonlocals
        if "applicable_params" in named:
            return frozenset(named["applicable_params"])
        function = function.__wrapped__
    return frozenset()


# by the name in a modeling file; None for functions of a single next token, which see one sequence alone
_BOUNDED: Mapping[str, Callable[..., Any] | None] = {
    "causal_conv1d_fn": _convolution,
    "causal_conv1d_update": None,
    "chunk_gated_delta_rule": _delta_rule,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "torch_recurrent_gated_delta_rule": None,
}
