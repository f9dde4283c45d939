"""From logits to the next token: the likeliest one, or a draw that depends on its request alone.

Shapes:  B sequences · V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.core.seeds import derive_seed

__all__ = ["Sampling", "pick_tokens"]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are picked.

    Attributes:
        temperature: 0 picks the likeliest token; above 0 the logits are divided by it and a token is drawn.
        top_p: Draw among the likeliest tokens that together have at least this probability, in (0, 1].
    """

    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")


def pick_tokens(
    logits_BV: Tensor, *, sampling: Sampling, seeds: Sequence[int], steps: Sequence[int]
) -> list[int | None]:
    """Return the next token of each sequence; None where its logits are not finite.

    Args:
        steps: Tokens each sequence has already generated: a draw is a pure function of seed and step.
    """
    finite_B = logits_BV.isfinite().all(dim=1)
    if sampling.temperature == 0.0:
        picked = logits_BV.argmax(dim=1)
    else:
        draws = [derive_seed("sampler", seed, step) / 2**63 for seed, step in zip(seeds, steps, strict=True)]
        picked = _draw(logits_BV, sampling=sampling, draws=draws)
    both = torch.stack((picked, finite_B.to(picked.dtype))).tolist()
    return [token if finite else None for token, finite in zip(*both, strict=True)]


def _draw(logits_BV: Tensor, *, sampling: Sampling, draws: Sequence[float]) -> Tensor:
    """Invert the cumulative distribution over the tokens in order of probability, at ``draws`` in [0, 1)."""
    scaled = torch.nan_to_num(logits_BV.double()) / sampling.temperature
    probabilities, tokens = scaled.softmax(dim=1).sort(dim=1, descending=True, stable=True)
    cumulative = probabilities.cumsum(dim=1)
    # a token stays if those before it do not yet reach top_p
    kept = (cumulative - probabilities) < sampling.top_p
    totals = torch.where(kept, probabilities, 0.0).sum(dim=1, keepdim=True)
    targets = torch.tensor(draws, dtype=torch.float64, device=logits_BV.device)[:, None] * totals
    places = torch.searchsorted(cumulative, targets, right=True)
    # rounding may carry the last draw one past the last kept token
    last = kept.sum(dim=1, keepdim=True) - 1
    return tokens.gather(1, torch.minimum(places, last))[:, 0]
