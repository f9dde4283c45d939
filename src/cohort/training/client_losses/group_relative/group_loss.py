"""Policy losses over groups of answers to one prompt: what they share, and what each declares.

A loss is a sum over tokens. What each token counts is known before any pass, from the lengths of all answers of the
optimizer step, so the step may be cut into micro-batches anywhere.

Source: Shao et al. 2024, DeepSeekMath (GRPO); names, defaults and divisors are those of TRL's GRPOTrainer.

Shapes:  M targets of one or several answers · G prompts · N answers to each
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cohort.training.client_losses.group_relative.advantages import group_advantages
from cohort.training.client_losses.token_objective import TokenObjective

__all__ = [
    "NUMBERS",
    "POLICY_INPUTS",
    "Advantages",
    "GroupLoss",
    "LogRatios",
    "Surrogate",
    "answer_share",
    "answer_shares",
    "clipped_surrogate",
    "constant_share",
    "policy_objective",
    "token_log_ratios",
    "token_share",
]

POLICY_INPUTS = ("logprobs", "ref_logprobs", "advantages", "weights")
"""What a policy loss reads of every target: the log-probability when the answer was drawn, that of the reference (read
where ``beta`` is not 0), the advantage of the answer, and the share of the target in the loss, 0 where it has none."""

NUMBERS: Mapping[str, float] = {
    "epsilon": 0.2,
    "epsilon_high": 0.0,
    "delta": 0.0,
    "beta": 0.0,
    "use_bias_correction_kl": 1.0,
    "on_policy": 0.0,
}
"""What a loss may be given: 0 for ``epsilon_high`` means ``epsilon``, for ``delta`` no further bound. With
``on_policy`` the pass's own log-probabilities take the place of ``logprobs``, so that each ratio is exactly 1."""

Surrogate = Callable[[Tensor, Tensor, Tensor, Mapping[str, float]], Tensor]
"""The loss of each target [M] from its importance ratio, log-probability, advantage and the numbers."""

LogRatios = Callable[[Tensor, Tensor, Sequence[int]], Tensor]
"""The logarithms of the importance ratios [M] from those of the tokens, which of them count, and the offsets."""


class Share(Protocol):
    """What each token of an answer counts."""

    def __call__(self, num_tokens: int, *, num_answers: int, total_tokens: int, max_completion_length: int) -> float:
        """Return the weight of each token of an answer of ``num_tokens``.

        Args:
            num_tokens: At least 1.
            num_answers: All answers of the optimizer step, those without a weight included.
            total_tokens: Of the answers of the step that have a weight.
            max_completion_length: Most tokens that an answer may have.
        """
        ...


class Advantages(Protocol):
    """How much better an answer is than the others to its prompt."""

    def __call__(self, rewards_GN: NDArray[np.float64], *, scale: str) -> NDArray[np.float64]:
        """Return the advantages [G, N]; a reward that is NaN takes no part, and its advantage is 0."""
        ...


def token_log_ratios(log_ratios_M: Tensor, counts_M: Tensor, offsets: Sequence[int]) -> Tensor:
    """Return a ratio for each token."""
    del counts_M, offsets
    return log_ratios_M


@dataclass(frozen=True, kw_only=True)
class GroupLoss:
    """One ``loss_type``.

    Attributes:
        objective: The term of each token.
        share: What each token counts.
        advantages: How rewards become advantages.
        log_ratios: Of ``objective``.
        bounds_ratio: Whether ``epsilon_high`` is the largest ratio itself, and none is too small.
    """

    objective: TokenObjective
    share: Share
    advantages: Advantages = group_advantages
    log_ratios: LogRatios = token_log_ratios
    bounds_ratio: bool = False

    def clipped(
        self, log_ratios: Sequence[NDArray[np.float64]], advantages: Sequence[float], *, numbers: Mapping[str, float]
    ) -> NDArray[np.bool_]:
        """Return which tokens of some answers, one answer after the other, have a ratio that is clipped.

        Args:
            log_ratios: Of each answer's tokens: how much likelier each has become, in nats.
            advantages: Of each answer.
        """
        offsets = [0, *itertools.accumulate(map(len, log_ratios))]
        own_M = torch.from_numpy(np.concatenate(log_ratios))
        ratios_M = self.log_ratios(own_M, torch.ones_like(own_M, dtype=torch.bool), offsets).exp().numpy()
        advantages_M = np.repeat(np.asarray(advantages), [len(own) for own in log_ratios])
        high = numbers["epsilon_high"] or numbers["epsilon"]
        is_above_M = (ratios_M > (high if self.bounds_ratio else 1 + high)) & (advantages_M > 0)
        is_below_M = (ratios_M < 1 - numbers["epsilon"]) & (advantages_M < 0)
        return np.asarray(is_above_M if self.bounds_ratio else is_above_M | is_below_M)


def policy_objective(name: str, *, summary: str, log_ratios: LogRatios, surrogate: Surrogate) -> TokenObjective:
    """Return the token objective with the given ratio and surrogate, plus ``beta`` times the KL to the reference.

    The KL of a token is estimated by ``exp(ref - logp) - (ref - logp) - 1`` (Schulman 2020, k3), and multiplied by the
    ratio with ``use_bias_correction_kl`` (DeepSeek-V3.2, 2025).
    """

    def terms(
        logps_M: Tensor, *, inputs: Mapping[str, Tensor], numbers: Mapping[str, float], offsets: Sequence[int]
    ) -> Tensor:
        weights_M = inputs["weights"]
        counts_M = weights_M != 0
        # in front of every exponential: what lies at a target without a weight must not reach a gradient as NaN
        own_M = torch.where(counts_M, logps_M, 0.0)
        old_M = own_M.detach() if numbers["on_policy"] else torch.where(counts_M, inputs["logprobs"], 0.0)
        ratio_M = torch.exp(log_ratios(own_M - old_M, counts_M, offsets))
        losses_M = surrogate(ratio_M, own_M, inputs["advantages"], numbers)
        if numbers["beta"]:
            away_M = torch.where(counts_M, inputs["ref_logprobs"], 0.0) - own_M
            kl_M = torch.exp(away_M) - away_M - 1
            losses_M = losses_M + numbers["beta"] * (kl_M * ratio_M if numbers["use_bias_correction_kl"] else kl_M)
        return torch.where(counts_M, weights_M * losses_M, 0.0)

    return TokenObjective(name=name, summary=summary, inputs=POLICY_INPUTS, numbers=NUMBERS, terms=terms)


def clipped_surrogate(ratio_M: Tensor, logps_M: Tensor, advantages_M: Tensor, numbers: Mapping[str, float]) -> Tensor:
    """Return PPO's pessimistic loss; ``delta`` bounds the ratio from above as well (INTELLECT-2, 2025)."""
    del logps_M
    high = numbers["epsilon_high"] or numbers["epsilon"]
    clipped_M = ratio_M.clamp(1 - numbers["epsilon"], 1 + high)
    bounded_M = ratio_M.clamp(max=numbers["delta"]) if numbers["delta"] else ratio_M
    return -torch.minimum(bounded_M * advantages_M, clipped_M * advantages_M)


def answer_share(num_tokens: int, *, num_answers: int, total_tokens: int, max_completion_length: int) -> float:
    """Count every answer the same: the mean over its tokens, then over the answers."""
    del total_tokens, max_completion_length
    return 1 / (num_answers * num_tokens)


def token_share(num_tokens: int, *, num_answers: int, total_tokens: int, max_completion_length: int) -> float:
    """Count every token the same: the mean over all tokens of the optimizer step."""
    del num_tokens, num_answers, max_completion_length
    return 1 / total_tokens


def constant_share(num_tokens: int, *, num_answers: int, total_tokens: int, max_completion_length: int) -> float:
    """Divide by a constant, so that neither an answer's length nor that of the others changes what a token counts."""
    del num_tokens, total_tokens
    return 1 / (num_answers * max_completion_length)


def answer_shares(
    loss: GroupLoss, lengths: Sequence[int], *, left_out: Sequence[bool], max_completion_length: int
) -> list[float]:
    """Return the weight of each token of each answer of an optimizer step.

    Args:
        lengths: Tokens of each answer.
        left_out: Whether an answer has no weight, as with ``mask_truncated_completions``. It counts as an answer, its
            tokens do not count.
        max_completion_length: Most tokens that an answer may have.
    """
    weighted = [num > 0 and not out for num, out in zip(lengths, left_out, strict=True)]
    total = sum(num for num, counts in zip(lengths, weighted, strict=True) if counts)
    return [
        loss.share(num, num_answers=len(lengths), total_tokens=total, max_completion_length=max_completion_length)
        if counts
        else 0.0
        for num, counts in zip(lengths, weighted, strict=True)
    ]
