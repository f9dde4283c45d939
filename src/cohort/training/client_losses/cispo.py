"""CISPO (MiniMax-M1, 2025): the clipped importance ratio is a constant weight, so no token loses its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cohort.training.client_losses.token_objective import ClipNumbers, TokenObjective

__all__ = ["TOKEN_OBJECTIVE"]


def _terms(
    logps_M: Tensor, *, inputs: Mapping[str, Tensor], numbers: Mapping[str, float], offsets: Sequence[int]
) -> Tensor:
    del offsets
    ratio_M = torch.exp(logps_M.detach() - inputs["logprobs"])
    weights_M = ratio_M.clamp(numbers["clip_low_threshold"], numbers["clip_high_threshold"])
    return -weights_M * logps_M * inputs["advantages"]


TOKEN_OBJECTIVE = TokenObjective(
    name="cispo",
    summary="-log p times the advantage, weighted by the clipped ratio",
    inputs=("logprobs", "advantages"),
    numbers=ClipNumbers,
    terms=_terms,
)
