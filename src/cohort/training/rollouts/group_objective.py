"""What passes ask of an objective that compares the answers which a trial gives to one prompt.

Shapes:  G prompts of a step · S answers to each
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cohort.training.client_training.datum import TokenLoss

__all__ = ["GroupObjective"]


@runtime_checkable
class GroupObjective(Protocol):
    """An objective whose ``samples_answers`` is True, with the names and meanings of TRL's ``GRPOConfig``."""

    num_generations: int
    num_iterations: int
    temperature: float
    top_p: float
    max_completion_length: int
    beta: float

    def token_loss(self, *, on_policy: bool) -> TokenLoss:
        """Return the loss of answer tokens; ``on_policy`` takes the pass's own log-probabilities as the old ones."""
        ...

    def clipped(self, log_ratios: Sequence[NDArray[np.float64]], advantages: Sequence[float]) -> NDArray[np.bool_]:
        """Return which tokens have a ratio that the loss clips, one answer after the other.

        Args:
            log_ratios: Of each answer's tokens: how much likelier each is than when it was drawn, in nats.
            advantages: Of each answer.
        """
        ...

    def shares(self, lengths: Sequence[int], *, truncated: Sequence[bool]) -> list[float]:
        """Return the weight that each token of each answer has in the loss of the whole step."""
        ...

    def advantages(self, rewards_GS: NDArray[np.float64], /) -> NDArray[np.float64]:
        """Return the advantages [G, S] of a whole step; a reward is NaN where an answer has none."""
        ...
