"""What an objective declares. Passes, evaluation, the executor and the memory probe know nothing else about it.

Shapes:  T rows of the stream · G groups
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from cohort.data.tokenised import Sample

__all__ = ["Objective"]


class Objective(Protocol):
    """What trials minimise: one term for each group of rows, summed over an optimizer step and divided by its divisor.

    The loss of a slot is ``sum(terms of its step) / divisor(samples of its step)``, whatever micro-batches the step
    is cut into. A term depends on its own group alone, and has the same bits in every pack.

    Attributes:
        group_size: Consecutive rows of the data that share a term, and so a micro-batch: 1, or 2 for preference pairs.
            ``batch_size`` and evaluations count groups.
        sums_tokens: Whether a term is the plain sum of its tokens' losses. The weight of every token is then known
            before the forward pass, and passes can be recorded as CUDA graphs; otherwise it follows from the terms.
    """

    group_size: int = 1
    sums_tokens: bool = False

    def divisor(self, samples: Sequence[Sample]) -> int:
        """Return what a slot's sum of terms is divided by: of all rows of its optimizer step, or of an evaluation."""
        ...

    def terms(self, losses_T: Tensor, samples: Sequence[Sample]) -> Tensor:
        """Return the term of each group [G], differentiable in the token losses.

        Args:
            losses_T: ``-log p`` of every row's next token, 0 where it is not trained; filler rows come last.
            samples: The rows in the stream's order, whole groups, of any slots.
        """
        ...

    def metrics(self, losses_T: Tensor, samples: Sequence[Sample]) -> Mapping[str, Tensor]:
        """Return further numbers of each group [G] by name; an evaluation reports their means."""
        del losses_T, samples
        return {}
