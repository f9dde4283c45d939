"""From logits to the next token: the likeliest one, or a draw that depends on its request alone.

Shapes:  B sequences · V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.core.seeds import derive_seed

__all__ = ["Sampling", "Scores", "TokenLogprobs", "pick_tokens", "token_logprobs"]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are picked.

    Attributes:
        temperature: 0 picks the likeliest token; above 0 the logits are divided by it and a token is drawn.
        top_p: Draw among the likeliest tokens that together have at least this probability, in (0, 1].
        top_k: Draw among this many of the likeliest tokens; 0 for all.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0, got {self.top_k}")


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """Natural logarithms of probabilities, with nothing cut; of the model's own distribution unless scaled.

    Attributes:
        picked: Of the token that was picked.
        top: Of the likeliest tokens, in descending order.
    """

    picked: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Scores:
    """Logits of sequences, and what every way of picking asks of them.

    Attributes:
        likeliest_2B: int64: the likeliest token of each, and 1 where all logits are finite.
    """

    logits_BV: Tensor
    likeliest_2B: Tensor

    @classmethod
    def of(cls, logits_BV: Tensor) -> Scores:
        picked_B, (least_B, most_B) = logits_BV.argmax(dim=1), logits_BV.aminmax(dim=1)
        # one pass over the vocabulary: NaN makes both NaN, and no difference to an infinity is below infinity
        finite_B = (most_B - least_B) < torch.inf
        return cls(logits_BV, torch.stack((picked_B, finite_B.to(picked_B.dtype))))

    def first(self, count: int) -> Scores:
        return Scores(self.logits_BV[:count], self.likeliest_2B[:, :count])


def pick_tokens(
    scores: Scores, *, samplings: Sequence[Sampling], seeds: Sequence[int], steps: Sequence[int]
) -> list[int | None]:
    """Return the next token of each sequence; None where its logits are not finite.

    Args:
        samplings: How each sequence is sampled.
        steps: Tokens each sequence has already generated: a draw is a pure function of seed and step.
    """
    both_2B = scores.likeliest_2B
    drawn = [row for row, sampling in enumerate(samplings) if sampling.temperature > 0.0]
    if drawn:
        rows = torch.tensor(drawn, device=both_2B.device)
        draws = [derive_seed("sampler", seeds[row], steps[row]) / 2**63 for row in drawn]
        own = [samplings[row] for row in drawn]
        both_2B = both_2B.clone()
        both_2B[0, rows] = _draw(scores.logits_BV.index_select(0, rows), samplings=own, draws=draws)
    return [token if finite else None for token, finite in zip(*both_2B.tolist(), strict=True)]


def _draw(logits_BV: Tensor, *, samplings: Sequence[Sampling], draws: Sequence[float]) -> Tensor:
    """Invert the cumulative distribution over the tokens in order of probability, at ``draws`` in [0, 1)."""
    vocab_size, device = logits_BV.shape[1], logits_BV.device

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)[:, None]

    scaled = torch.nan_to_num(logits_BV.double()) / column([sampling.temperature for sampling in samplings])
    probabilities, tokens = scaled.softmax(dim=1).sort(dim=1, descending=True, stable=True)
    cumulative = probabilities.cumsum(dim=1)
    places = torch.arange(vocab_size, device=device)
    kept = places < column([sampling.top_k or vocab_size for sampling in samplings])
    # top_p is a share of what top_k leaves; a token stays if those before it do not yet reach it
    left = torch.where(kept, probabilities, 0.0).sum(dim=1, keepdim=True)
    kept &= (cumulative - probabilities) < column([sampling.top_p for sampling in samplings]) * left
    totals = torch.where(kept, probabilities, 0.0).sum(dim=1, keepdim=True)
    found = torch.searchsorted(cumulative, column(draws) * totals, right=True)
    # rounding may carry the last draw one past the last kept token
    last = kept.sum(dim=1, keepdim=True) - 1
    return tokens.gather(1, torch.minimum(found, last))[:, 0]


def token_logprobs(
    logits_BV: Tensor, *, picked: Sequence[int], counts: Sequence[int], temperatures: Sequence[float] | None = None
) -> list[TokenLogprobs]:
    """Return the logarithms of each sequence's picked token and of its ``counts`` likeliest ones.

    ``temperatures`` divide the logits of each; None for 1.
    """
    scaled_BV = logits_BV.double()
    if temperatures is not None and any(temperature != 1.0 for temperature in temperatures):
        scaled_BV /= torch.tensor(temperatures, dtype=torch.float64, device=logits_BV.device)[:, None]
    logprobs_BV = scaled_BV.log_softmax(dim=1)
    own = logprobs_BV.gather(1, torch.tensor(picked, device=logits_BV.device)[:, None])[:, 0].tolist()
    values, tokens = logprobs_BV.topk(max(max(counts), 1), dim=1)
    return [
        TokenLogprobs(picked=mine, top=tuple(zip(some_tokens[:count], some[:count], strict=True)))
        for mine, some_tokens, some, count in zip(own, tokens.tolist(), values.tolist(), counts, strict=True)
    ]
