"""Decides which training passes keep their activations and which recompute them in the backward pass.

Keeping costs memory. Recomputing costs one more forward pass of the layers, about half as much time again where weights
are frozen (forward and the gradient of the stream are one product each). So a pass that fits is not recomputed. A pass
that does not fit is cut between samples first, which costs nothing while the parts still fill the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cohort.core.memory_records import GradientCheckpointing
from cohort.data.packing import SlotSample

__all__ = ["LEAST_SPLIT_TOKENS", "GradientCheckpointingPolicy"]

# A GPU's pass is not cut below this where recomputing the whole one is possible. Smaller passes take as long as their
# launches: 0.2 s for 8B, in which an H200 computes 4,096 tokens, and a card of an eighth of its speed 512. A CPU's pass
# is cut at any size: a core has 56 % of its speed at 64 tokens a pass and 77 % at 128 (token_budget_cpu.json), so two
# halves are about as fast as a whole that is recomputed.
LEAST_SPLIT_TOKENS = {"cuda": 512}


class GradientCheckpointingPolicy:
    """The policy of one executor. No number of a trial depends on it.

    Attributes:
        keep_tokens: Training passes of more tokens are recomputed; with None, no pass is.
        num_passes: Passes that were recomputed.
    """

    def __init__(self, mode: GradientCheckpointing, *, keep_tokens: int | None, device: torch.device | str) -> None:
        """Start with what was planned.

        Args:
            keep_tokens: In mode ``auto``, most tokens of a pass that keeps its activations; None for no bound.
        """
        self._mode = mode
        self._least_split = LEAST_SPLIT_TOKENS.get(torch.device(device).type, 1)
        self.keep_tokens = {
            GradientCheckpointing.AUTO: keep_tokens,
            GradientCheckpointing.ALWAYS: 0,
            GradientCheckpointing.NEVER: None,
        }[mode]
        self.num_passes = 0

    def is_for(self, num_tokens: int) -> bool:
        return self.keep_tokens is not None and num_tokens > self.keep_tokens

    def recomputes(self, part: Sequence[SlotSample]) -> bool:
        """Whether a pass over ``part`` is recomputed."""
        return self.is_for(sum(len(entry.sample.tokens) for entry in part))

    def lower(self, keep_tokens: int) -> None:
        """Recompute passes of more than ``keep_tokens`` tokens as well, in mode ``auto``."""
        if self._mode is GradientCheckpointing.AUTO:
            self.keep_tokens = keep_tokens if self.keep_tokens is None else min(self.keep_tokens, keep_tokens)

    def takes_over(self, num_tokens: int, *, can_split: bool) -> bool:
        """Decide to recompute a pass that ran out of memory; False if it is to be split, or was recomputed already."""
        if self._mode is not GradientCheckpointing.AUTO or self.is_for(num_tokens):
            return False
        if can_split and num_tokens // 2 >= self._least_split:
            return False
        self.lower(num_tokens - 1)
        return True
