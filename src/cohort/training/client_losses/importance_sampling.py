"""The policy gradient with an importance ratio: what was sampled by other weights counts by how likely it is now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cohort.training.client_losses.token_objective import TokenObjective

__all__ = ["TOKEN_OBJECTIVE"]


def _terms(
    logps_M: Tensor, *, inputs: Mapping[str, Tensor], numbers: Mapping[str, float], offsets: Sequence[int]
) -> Tensor:
    del numbers, offsets
    return -torch.exp(logps_M - inputs["logprobs"]) * inputs["advantages"]


TOKEN_OBJECTIVE = TokenObjective(
    name="importance_sampling",
    summary="the sum of -ratio * advantage, where ratio = p / p of the sampler",
    inputs=("logprobs", "advantages"),
    terms=_terms,
)
