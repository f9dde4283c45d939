"""What an objective declares. Passes, evaluation, the executor and the memory probe know nothing else about it.

Shapes:  G groups · S rows of a group
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from torch import Tensor

from cohort.data.tokenised import Sample

__all__ = ["Groups", "Objective"]


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Groups of rows whose terms are computed together, of any trials whose objectives are of one kind.

    Attributes:
        samples: Their rows, whole groups.
        answer_losses_GS: ``-log p`` of each row's trained answer, summed over its tokens; differentiable.
        prompt_losses_GS: The same of the trained tokens before the answer; 0 where rows are not divided.
        answer_tokens_GS: Trained tokens of each answer.
        reference_losses_GS: ``-log p`` of each answer by the reference model.
        numbers: The trials' own numbers of the objective [G], by name.
        step_values: What :meth:`Objective.step_values` gave for the whole step of each group's trial, each [G].
        token_losses: ``-log p`` of each row's trained tokens, a tensor [n] for each of ``samples``, differentiable;
            empty unless the objective ``reads_tokens``.
    """

    samples: tuple[Sample, ...]
    answer_losses_GS: Tensor
    prompt_losses_GS: Tensor
    answer_tokens_GS: Tensor
    reference_losses_GS: Tensor
    numbers: Mapping[str, Tensor]
    step_values: tuple[Tensor, ...]
    token_losses: tuple[Tensor, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a trial minimises: one term for each group of rows, summed over an optimizer step, over a divisor.

    The loss of a slot is ``sum(terms of its step) / divisor(samples of its step)``, whatever micro-batches the step
    is cut into. A term depends on its own group, on the trial's own numbers and on a few numbers of the trial's whole
    step; it has the same bits in every pack. Fields of an objective are what a trial chooses, such as ``beta``.

    Attributes:
        group_size: Consecutive rows of the data that share a term, and so a micro-batch: 1, or 2 for preference pairs.
            ``batch_size`` and evaluations count groups.
        sums_tokens: Whether a term is the plain sum of its tokens' losses. The weight of every token is then known
            before the forward pass, and passes can be recorded as CUDA graphs; otherwise it follows from the terms.
        reads_tokens: Whether a term reads the losses of single tokens and not their sums alone.
        needs_reference: Whether terms compare with a reference model (:attr:`Sample.reference_logp`).
        samples_answers: Whether rows are prompts, and each step trains on answers that the trial itself has just given.
    """

    group_size: ClassVar[int] = 1
    sums_tokens: ClassVar[bool] = False
    reads_tokens: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = False
    samples_answers: ClassVar[bool] = False

    @property
    def compares_batch(self) -> bool:
        """Whether numbers of a step are measured on :meth:`companions` of its rows before it."""
        return False

    @property
    def kind(self) -> Hashable:
        """What the terms of several trials must share to be computed together: all but the numbers."""
        return (type(self), *(value for value in vars(self).values() if isinstance(value, str)))

    @property
    def numbers(self) -> dict[str, float]:
        """The trial's own numbers, by name."""
        return {name: float(value) for name, value in vars(self).items() if not isinstance(value, str)}

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """Return the objective with a trial's values; names that it does not have are left out."""
        own = {field.name: values[field.name] for field in fields(self) if field.name in values}
        return type(self)(**own)

    def seen(self, sample: Sample, *, place: int) -> Sample:
        """Return a row as this objective trains it; ``place`` is its place in its group."""
        del place
        return sample

    def divisor(self, samples: Sequence[Sample]) -> int:
        """Return what a slot's sum of terms is divided by: of all rows of its optimizer step, or of an evaluation."""
        return len(samples) // self.group_size

    def step_values(self, samples: Sequence[Sample]) -> tuple[float, ...]:
        """Return the numbers of a whole step, or of an evaluation, that its terms need, from its rows."""
        del samples
        return ()

    def companions(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return the rows that are measured before a step, without gradient, where ``compares_batch``."""
        del samples
        return []

    def measured_values(
        self, values: tuple[float, ...], losses: Sequence[float], reference_losses: Sequence[float]
    ) -> tuple[float, ...]:
        """Return the step's numbers from the losses of its companions, by the trial and by the reference model.

        ``values`` are those of :meth:`step_values`.
        """
        del losses, reference_losses
        return values

    def terms(self, groups: Groups) -> Tensor:
        """Return the term of each group [G], differentiable in the losses."""
        raise NotImplementedError(f"{type(self).__name__} declares no terms")

    def metrics(self, groups: Groups) -> Mapping[str, Tensor]:
        """Return further numbers of each group [G] by name; an evaluation reports their means."""
        del groups
        return {}
