"""Direct reward optimisation (Richemond et al. 2024): the advantage, with a square that keeps near the sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from cohort.training.client_losses.token_objective import TokenObjective

__all__ = ["TOKEN_OBJECTIVE"]


def _terms(
    logps_M: Tensor, *, inputs: Mapping[str, Tensor], numbers: Mapping[str, float], offsets: Sequence[int]
) -> Tensor:
    del offsets
    away_M = logps_M - inputs["logprobs"]
    return -(logps_M * inputs["advantages"] - 0.5 * numbers["beta"] * away_M * away_M)


TOKEN_OBJECTIVE = TokenObjective(
    name="dro",
    summary="-log p times the advantage, plus beta / 2 times the squared distance from the sampler's log-probability",
    inputs=("logprobs", "advantages"),
    numbers={"beta": 0.05},
    terms=_terms,
)
