"""Groups of answers with given losses, for tests of one objective's formula."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from cohort.data.tokenised import Sample
from cohort.training.objectives.objective import Groups, Objective

__all__ = ["groups_of", "row"]


def row(*, prompt: int = 3, answer: int = 2, is_desirable: bool = True) -> Sample:
    """A row of ``prompt`` tokens and a trained answer."""
    trained = np.zeros(prompt + answer, dtype=np.bool_)
    trained[prompt:] = True
    tokens = np.arange(prompt + answer, dtype=np.int32)
    return Sample(sample_id=0, tokens=tokens, trained=trained, answer_start=prompt, is_desirable=is_desirable)


def groups_of(
    objective: Objective,
    losses: Sequence[Sequence[float]],
    *,
    reference: Sequence[Sequence[float]] = (),
    prompt_losses: Sequence[Sequence[float]] = (),
    samples: Sequence[Sample] = (),
    step_values: Sequence[float] = (),
) -> Groups:
    """One group for each entry of ``losses``, all of one trial; every answer has two tokens."""
    answers_GS = torch.tensor(losses, dtype=torch.float64, requires_grad=True)
    zeros_GS = torch.zeros_like(answers_GS)

    def given(values: Sequence[Sequence[float]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64) if values else zeros_GS

    return Groups(
        samples=tuple(samples) or tuple(row() for _ in range(answers_GS.numel())),
        answer_losses_GS=answers_GS,
        prompt_losses_GS=given(prompt_losses),
        answer_tokens_GS=torch.full_like(zeros_GS, 2.0),
        reference_losses_GS=given(reference),
        numbers={
            name: torch.full((len(losses),), value, dtype=torch.float64) for name, value in objective.numbers.items()
        },
        step_values=tuple(torch.full((len(losses),), value, dtype=torch.float64) for value in step_values),
    )
