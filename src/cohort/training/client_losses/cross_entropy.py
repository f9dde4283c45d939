"""Cross-entropy with a weight for every target, of any sign; soft targets are several targets of one position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from cohort.training.client_losses.token_objective import TokenObjective

__all__ = ["TOKEN_OBJECTIVE"]


def _terms(
    logps_M: Tensor, *, inputs: Mapping[str, Tensor], numbers: Mapping[str, float], offsets: Sequence[int]
) -> Tensor:
    del numbers, offsets
    return -logps_M * inputs["weights"]


TOKEN_OBJECTIVE = TokenObjective(
    name="cross_entropy",
    summary="the weighted sum of -log p of the targets",
    inputs=("weights",),
    several_targets=True,
    terms=_terms,
)
