"""What a token objective declares: a loss made of one term for each trained token, by that token's log-probability.

Clients that drive the training themselves choose one for every call, with the names and sums of Thinking Machines'
Tinker; nothing is divided by a number of tokens or rows.

Shapes:  M targets of one or several data
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["ClipNumbers", "Terms", "TokenObjective", "clipped_ratio_terms", "datum_means"]


class Terms(Protocol):
    """The terms of targets."""

    def __call__(
        self, logps_M: Tensor, *, inputs: Mapping[str, Tensor], numbers: Mapping[str, float], offsets: Sequence[int]
    ) -> Tensor:
        """Return the term of each target [M]; their sum is the loss.

        Args:
            logps_M: Log-probability of each target, in nats; differentiable.
            inputs: Each of the declared inputs, [M].
            numbers: Each of the declared numbers.
            offsets: Where each datum's targets begin, and behind them the end.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class TokenObjective:
    """One loss that a client may name.

    Attributes:
        name: As the client writes it.
        summary: One sentence.
        inputs: What it needs of every target besides the target itself.
        optional: What it reads where the client sends it, and the value of every target where it does not.
        numbers: What a call may set, and what holds otherwise.
        several_targets: Whether a position may have several targets, each with inputs of its own.
        terms: The maths.
    """

    name: str
    summary: str
    inputs: tuple[str, ...]
    terms: Terms
    optional: Mapping[str, float] | None = None
    numbers: Mapping[str, float] | None = None
    several_targets: bool = False


ClipNumbers: Mapping[str, float] = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
"""Where an importance ratio is clipped, unless a call says otherwise."""


def clipped_ratio_terms(ratio_M: Tensor, *, advantages_M: Tensor, numbers: Mapping[str, float]) -> Tensor:
    """Return PPO's pessimistic terms [M]: ``-min(ratio * A, clip(ratio) * A)``."""
    clipped_M = ratio_M.clamp(numbers["clip_low_threshold"], numbers["clip_high_threshold"])
    return -torch.minimum(ratio_M * advantages_M, clipped_M * advantages_M)


def datum_means(values_M: Tensor, *, mask_M: Tensor, offsets: Sequence[int]) -> Tensor:
    """Return the mean of ``values`` over each datum's masked targets, at every target of the datum [M].

    A datum without a masked target has the mean 0. Each datum is summed by itself, so a NaN stays in its datum and
    the mean has the same bits whatever else is computed with it.
    """
    means = []
    for start, stop in itertools.pairwise(offsets):
        own_mask = mask_M[start:stop]
        # where, not a product: NaN times 0 is NaN
        masked = torch.where(own_mask != 0, values_M[start:stop] * own_mask, 0.0)
        means.append((masked.sum() / own_mask.sum().clamp(min=1.0)).expand(stop - start))
    return torch.cat(means)
