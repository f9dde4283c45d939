"""GSPO (Zheng et al. 2025): one importance ratio for a whole answer, clipped as in PPO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cohort.training.client_losses.token_objective import (
    ClipNumbers,
    TokenObjective,
    clipped_ratio_terms,
    datum_means,
)

__all__ = ["TOKEN_OBJECTIVE"]


def _terms(
    logps_M: Tensor, *, inputs: Mapping[str, Tensor], numbers: Mapping[str, float], offsets: Sequence[int]
) -> Tensor:
    away_M = logps_M.detach() - inputs["logprobs"]
    ratio_M = torch.exp(datum_means(away_M, mask_M=inputs["sequence_ratio_mask"], offsets=offsets))
    # the value is the answer's ratio, the gradient goes through the token's own log-probability (GSPO-token)
    own_M = ratio_M * torch.exp(logps_M - logps_M.detach())
    return clipped_ratio_terms(own_M, advantages_M=inputs["advantages"], numbers=numbers)


TOKEN_OBJECTIVE = TokenObjective(
    name="gspo",
    summary="PPO with one ratio a datum: exp of the mean over sequence_ratio_mask of the log ratios",
    inputs=("logprobs", "advantages"),
    optional={"sequence_ratio_mask": 1.0},
    numbers=ClipNumbers,
    terms=_terms,
)
