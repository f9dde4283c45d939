"""From logits to the next token: the likeliest one, or a draw that depends on its request alone.

Shapes:  B sequences · V vocabulary
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.core.seeds import derive_seed

__all__ = ["Sampling", "Scores", "TokenLogprobs", "pick_tokens", "token_logprobs"]

# of the float64 probabilities of the sequences that are drawn at once; a few such copies exist at a time
_WORKING_BYTES = 1 << 28


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

    @property
    def is_cut(self) -> bool:
        """Whether some tokens are never drawn."""
        return self.top_p < 1.0 or self.top_k > 0


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
        rows_D = torch.tensor(drawn, device=both_2B.device)
        draws = [derive_seed("sampler", seeds[row], steps[row]) / 2**63 for row in drawn]
        own = [samplings[row] for row in drawn]
        both_2B = both_2B.clone()
        both_2B[0, rows_D] = _draw(scores.logits_BV.index_select(0, rows_D), samplings=own, draws=draws)
    return [token if finite else None for token, finite in zip(*both_2B.tolist(), strict=True)]


def _draw(logits_BV: Tensor, *, samplings: Sequence[Sampling], draws: Sequence[float]) -> Tensor:
    """Return a token of each sequence: its cumulative distribution inverted at ``draws`` in [0, 1)."""
    tokens_B = torch.empty(len(draws), dtype=torch.int64, device=logits_BV.device)
    for invert, is_cut in ((_inverted_whole, False), (_inverted_cut, True)):
        own = [row for row, sampling in enumerate(samplings) if sampling.is_cut == is_cut]
        for rows in _chunks(own, vocab_size=logits_BV.shape[1]):
            rows_C = torch.tensor(rows, device=logits_BV.device)
            scaled_CV = torch.nan_to_num(logits_BV.index_select(0, rows_C).double())
            scaled_CV /= _column([samplings[row].temperature for row in rows], like=scaled_CV)
            draws_C1 = _column([draws[row] for row in rows], like=scaled_CV)
            tokens_B[rows_C] = invert(scaled_CV.softmax(dim=1), [samplings[row] for row in rows], draws_C1)
    return tokens_B


def _chunks(rows: Sequence[int], *, vocab_size: int) -> Iterator[Sequence[int]]:
    """Cut rows into as many as one working copy of theirs may have: a row's draw does not depend on the others."""
    most = max(1, _WORKING_BYTES // (8 * vocab_size))
    return (rows[start : start + most] for start in range(0, len(rows), most))


def _column(values: Sequence[float], *, like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]


def _inverted_whole(probabilities_CV: Tensor, samplings: Sequence[Sampling], draws_C1: Tensor) -> Tensor:
    """Draw among all tokens, in the order of their ids: sorting takes most of the time where nothing is cut."""
    del samplings
    cumulative_CV = probabilities_CV.cumsum(dim=1)
    totals_C1 = cumulative_CV[:, -1:].clone()
    found_C1 = torch.searchsorted(cumulative_CV, draws_C1 * totals_C1, right=True)
    # rounding may carry the last draw one past the last token that has a probability
    last_C1 = (cumulative_CV < totals_C1).sum(dim=1, keepdim=True)
    return torch.minimum(found_C1, last_C1)[:, 0]


def _inverted_cut(probabilities_CV: Tensor, samplings: Sequence[Sampling], draws_C1: Tensor) -> Tensor:
    """Draw among the likeliest tokens, in the order of their probability."""
    vocab_size, device = probabilities_CV.shape[1], probabilities_CV.device
    probabilities, tokens = probabilities_CV.sort(dim=1, descending=True, stable=True)
    cumulative = probabilities.cumsum(dim=1)
    places = torch.arange(vocab_size, device=device)
    kept = places < _column([sampling.top_k or vocab_size for sampling in samplings], like=probabilities)
    # top_p is a share of what top_k leaves; a token stays if those before it do not yet reach it
    left = torch.where(kept, probabilities, 0.0).sum(dim=1, keepdim=True)
    kept &= (cumulative - probabilities) < _column(
        [sampling.top_p for sampling in samplings], like=probabilities
    ) * left
    totals = torch.where(kept, probabilities, 0.0).sum(dim=1, keepdim=True)
    found = torch.searchsorted(cumulative, draws_C1 * totals, right=True)
    # rounding may carry the last draw one past the last kept token
    last = kept.sum(dim=1, keepdim=True) - 1
    return tokens.gather(1, torch.minimum(found, last))[:, 0]


def token_logprobs(
    logits_BV: Tensor, *, picked: Sequence[int], counts: Sequence[int], temperatures: Sequence[float] | None = None
) -> list[TokenLogprobs]:
    """Return the logarithms of each sequence's picked token and of its ``counts`` likeliest ones.

    ``temperatures`` divide the logits of each; None for 1.
    """
    found: list[TokenLogprobs] = []
    for rows in _chunks(range(len(picked)), vocab_size=logits_BV.shape[1]):
        scaled_CV = logits_BV[rows[0] : rows[-1] + 1].double()
        if temperatures is not None and any(temperature != 1.0 for temperature in temperatures):
            scaled_CV /= _column([temperatures[row] for row in rows], like=scaled_CV)
        logprobs_CV = scaled_CV.log_softmax(dim=1)
        tokens_C1 = torch.tensor([picked[row] for row in rows], device=logits_BV.device)[:, None]
        own = logprobs_CV.gather(1, tokens_C1)[:, 0].tolist()
        most = max(counts[row] for row in rows)
        # most callers want none
        values, tokens = ([[]] * len(rows),) * 2 if most == 0 else (each.tolist() for each in logprobs_CV.topk(most))
        found += [
            TokenLogprobs(picked=mine, top=tuple(zip(ids[: counts[row]], some[: counts[row]], strict=True)))
            for row, mine, ids, some in zip(rows, own, tokens, values, strict=True)
        ]
    return found
