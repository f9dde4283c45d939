"""From logits to the next token: the likeliest one, or a draw that depends on its request alone.

Shapes:  B sequences · V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cohort.core.seeds import derive_seed
from cohort.kernels.staging import to_device_unwaited
from cohort.kernels.token_draw import draw_tokens, picked_logprobs
from cohort.serving.step_output import TokenLogprobs

__all__ = ["AskedLogprobs", "Sampling", "Scores", "pick_tokens", "pick_with_logprobs"]

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
class AskedLogprobs:
    """Whose logarithms are wanted.

    Attributes:
        rows: Of the scores.
        counts: How many of the likeliest tokens of each row to report as well.
        temperatures: What each row's logits are divided by.
    """

    rows: Sequence[int]
    counts: Sequence[int]
    temperatures: Sequence[float]


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
    both_2B = _picked(scores, samplings=samplings, seeds=seeds, steps=steps)
    return [token if finite else None for token, finite in zip(*both_2B.tolist(), strict=True)]


def pick_with_logprobs(
    scores: Scores, *, samplings: Sequence[Sampling], seeds: Sequence[int], steps: Sequence[int], asked: AskedLogprobs
) -> tuple[list[int | None], list[TokenLogprobs]]:
    """Return what :func:`pick_tokens` returns, and the logarithms that are asked for; a GPU is waited for once.

    Those of a row whose logits are not finite are not finite either.
    """
    if not asked.rows:
        return pick_tokens(scores, samplings=samplings, seeds=seeds, steps=steps), []
    both_2B = _picked(scores, samplings=samplings, seeds=seeds, steps=steps)
    logits_BV, rows_C = scores.logits_BV, _sent(asked.rows, like=both_2B)
    (temperatures_C,) = _sent_numbers(asked.temperatures, like=both_2B)
    own_C = picked_logprobs(logits_BV, rows_C=rows_C, tokens_C=both_2B[0, rows_C], temperatures_C=temperatures_C)
    # float64 holds every token's number
    found, count = torch.cat((both_2B.double().flatten(), own_C)).tolist(), both_2B.shape[1]
    tokens = [
        int(token) if finite else None for token, finite in zip(found[:count], found[count : 2 * count], strict=True)
    ]
    logprobs = [TokenLogprobs(picked=own, top=()) for own in found[2 * count :]]
    # most callers want none
    for place, top in enumerate(asked.counts):
        if top:
            logprobs_V = (logits_BV[asked.rows[place]].double() / asked.temperatures[place]).log_softmax(dim=0)
            values, likeliest = logprobs_V.topk(top)
            logprobs[place].top = tuple(zip(likeliest.tolist(), values.tolist(), strict=True))
    return tokens, logprobs


def _picked(scores: Scores, *, samplings: Sequence[Sampling], seeds: Sequence[int], steps: Sequence[int]) -> Tensor:
    """Return int64 [2, B] as :attr:`Scores.likeliest_2B` is, with what was drawn in it."""
    both_2B = scores.likeliest_2B
    drawn = [row for row, sampling in enumerate(samplings) if sampling.temperature > 0.0]
    if drawn:
        # while a GPU computes the scores: what is sent there is waited for
        draws = {row: derive_seed("sampler", seeds[row], steps[row]) / 2**63 for row in drawn}
        both_2B = both_2B.clone()
        for draw, is_cut in ((_draw_whole, False), (_draw_cut, True)):
            rows = [row for row in drawn if samplings[row].is_cut == is_cut]
            if rows:
                rows_C = _sent(rows, like=both_2B)
                own = [samplings[row] for row in rows]
                both_2B[0, rows_C] = draw(scores.logits_BV, rows_C, own, [draws[row] for row in rows])
    return both_2B


def _sent(values: Sequence[int], *, like: Tensor) -> Tensor:
    return to_device_unwaited(np.array(values, dtype=np.int64), like.device)


def _sent_numbers(*columns: Sequence[float], like: Tensor) -> tuple[Tensor, ...]:
    """Return columns of float64 numbers, sent in one transfer."""
    return to_device_unwaited(np.array(columns, dtype=np.float64), like.device).unbind()


def _draw_whole(logits_BV: Tensor, rows_C: Tensor, samplings: Sequence[Sampling], draws: Sequence[float]) -> Tensor:
    """Draw among all tokens."""
    temperatures_C, draws_C = _sent_numbers([own.temperature for own in samplings], draws, like=logits_BV)
    return draw_tokens(logits_BV, rows_C=rows_C, temperatures_C=temperatures_C, draws_C=draws_C)


def _draw_cut(logits_BV: Tensor, rows_C: Tensor, samplings: Sequence[Sampling], draws: Sequence[float]) -> Tensor:
    """Draw among the likeliest tokens, some rows at a time: no row depends on the others."""
    most, found = max(1, _WORKING_BYTES // (8 * logits_BV.shape[1])), []
    for start in range(0, len(draws), most):
        part = slice(start, start + most)
        scaled_CV = torch.nan_to_num(logits_BV.index_select(0, rows_C[part]).double())
        scaled_CV /= _column([own.temperature for own in samplings[part]], like=scaled_CV)
        draws_C1 = _column(draws[part], like=scaled_CV)
        found.append(_inverted_cut(scaled_CV.softmax(dim=1), samplings[part], draws_C1))
    return torch.cat(found)


def _column(values: Sequence[float], *, like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]


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
