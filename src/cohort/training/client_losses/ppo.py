"""Proximal policy optimisation (Schulman et al. 2017, equation 7), token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cohort.training.client_losses.token_objective import ClipNumbers, TokenObjective, clipped_ratio_terms

__all__ = ["TOKEN_OBJECTIVE"]


def _terms(
    logps_M: Tensor, *, inputs: Mapping[str, Tensor], numbers: Mapping[str, float], offsets: Sequence[int]
) -> Tensor:
    del offsets
    ratio_M = torch.exp(logps_M - inputs["logprobs"])
    return clipped_ratio_terms(ratio_M, advantages_M=inputs["advantages"], numbers=numbers)


TOKEN_OBJECTIVE = TokenObjective(
    name="ppo",
    summary="importance sampling whose ratio stops paying outside of the clip thresholds",
    inputs=("logprobs", "advantages"),
    numbers=ClipNumbers,
    terms=_terms,
)
