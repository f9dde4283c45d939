"""What a bridged model gives for the sequences of the probe, each alone and in one stream.

Shapes:  T rows of the stream · L rows of one sequence · V vocabulary · D hidden width
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cohort.kernels.cross_entropy import linear_cross_entropy
from cohort.models.attention import PackedAttention
from cohort.models.bridge.backbone import BridgedDecoder
from cohort.models.bridge.pass_state import BridgedPass, during

__all__ = [
    "LENGTHS",
    "WINDOW",
    "compute_alone",
    "compute_in_stream",
    "Computed",
    "hidden_of_stream",
    "own_attention",
    "probe_sequences",
    "short_windows",
    "wide",
]

# of no common length, and longer than the window that layers with one get meanwhile
LENGTHS = (7, 13, 21)
WINDOW = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Computed:
    """What a model gives for the probe: logits and the gradients of the token rows, each by row."""

    logits_TV: Tensor
    gradient_TD: Tensor


def probe_sequences(decoder: BridgedDecoder) -> list[Tensor]:
    """Return sequences of tokens that stand for themselves alone."""
    generator, config = torch.Generator().manual_seed(0), decoder.model.config
    settings = {**config.get_text_config(decoder=True).to_dict(), **config.to_dict()}
    special = {
        one
        for key, value in settings.items()
        if key.endswith(("token_id", "token_index"))
        for one in (value if isinstance(value, list) else [value])
    }
    plain = torch.tensor([token for token in range(min(decoder.config.vocab_size, 4096)) if token not in special])
    picked = [plain[torch.randint(len(plain), (length,), generator=generator)] for length in LENGTHS]
    return [tokens.to(decoder.device) for tokens in picked]


def compute_alone(decoder: BridgedDecoder, sequences: Sequence[Tensor]) -> Computed:
    """Return what the model itself gives for each sequence, with attention of its own."""
    logits, gradients = [], []
    with own_attention(decoder), torch.enable_grad():
        for tokens_L in sequences:
            with _token_rows(decoder) as rows, during(BridgedPass(uses_own_experts=True)):
                logits_LV = decoder.model(input_ids=tokens_L[None], use_cache=False).logits[0]
                loss = F.cross_entropy(wide(logits_LV[:-1]), tokens_L[1:], reduction="sum")
                gradients.append(torch.autograd.grad(loss, rows)[0][0])
                logits.append(logits_LV.detach())
    return Computed(logits_TV=torch.cat(logits), gradient_TD=torch.cat(gradients))


def compute_in_stream(
    decoder: BridgedDecoder,
    tokens_T: Tensor,
    offsets: tuple[int, ...],
    seen: dict[str, list[int]],
    *,
    diverged: range = range(0),
) -> Computed:
    """Return the same of one stream, computed as training does; token rows that are ``diverged`` are NaN."""
    targets_T = torch.cat([tokens_T[1:], tokens_T.new_full((1,), -100)])
    targets_T[[stop - 1 for stop in offsets[1:]]] = -100
    with torch.enable_grad(), _token_rows(decoder, diverged=diverged) as rows, _counted(decoder, seen):
        hidden_TD = hidden_of_stream(decoder, tokens_T, offsets)
        losses_T = linear_cross_entropy(
            hidden_TD, head=decoder.head, targets_T=targets_T, logit_cap=decoder.config.logit_cap
        )
        gradients = torch.autograd.grad(losses_T.sum(), rows)
    # one by one, the last sequence comes first
    by_row = [gradient[0] for gradient in reversed(gradients)]
    with torch.no_grad():
        logits_TV = decoder.logits(hidden_TD.detach())
    return Computed(logits_TV=logits_TV, gradient_TD=torch.cat(by_row))


def hidden_of_stream(decoder: BridgedDecoder, tokens_T: Tensor, offsets: tuple[int, ...]) -> Tensor:
    lengths = [stop - start for start, stop in pairwise(offsets)]
    positions_T = torch.cat([torch.arange(length, device=tokens_T.device) for length in lengths])
    return decoder.forward(tokens_T, positions_T=positions_T, attention=PackedAttention(offsets), lora=None)


def wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


@contextmanager
def _token_rows(decoder: BridgedDecoder, *, diverged: range = range(0)) -> Iterator[list[Tensor]]:
    """Let the rows of the token table require a gradient; yields them as they are looked up.

    Rows of the stream that are ``diverged`` are NaN.
    """
    rows: list[Tensor] = []

    def hook(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        own = output.detach().clone()
        own[:, diverged.start : diverged.stop] = torch.nan
        rows.append(own.requires_grad_())
        return rows[-1] * 1

    handle = decoder.model.get_input_embeddings().register_forward_hook(hook)
    try:
        yield rows
    finally:
        handle.remove()


@contextmanager
def _counted(decoder: BridgedDecoder, seen: dict[str, list[int]]) -> Iterator[None]:
    decoder.rows_seen = seen
    try:
        yield
    finally:
        decoder.rows_seen = None


@contextmanager
def own_attention(decoder: BridgedDecoder) -> Iterator[None]:
    """Let the model attend by itself within the block: a packed one by its own plain code."""
    if not decoder.is_packed:
        yield
        return
    before = decoder.attention
    decoder.attend_by("eager")
    try:
        yield
    finally:
        decoder.attend_by(before)


@contextmanager
def short_windows(decoder: BridgedDecoder) -> Iterator[None]:
    """Shorten every sliding window so that the probe's sequences are longer than it."""
    text = decoder.model.config.get_text_config(decoder=True)
    changed: list[tuple[Any, str, Any]] = []
    for holder in (text, *decoder.model.modules()):
        for name in ("sliding_window", "attention_chunk_size"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > WINDOW:
                changed.append((holder, name, value))
                setattr(holder, name, WINDOW)
    try:
        yield
    finally:
        for holder, name, value in changed:
            setattr(holder, name, value)
