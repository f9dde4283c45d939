"""A loss of the user's own: a function of a row's token log-probabilities gives the loss of each token.

The function sees one row at a time, so it can neither mix rows nor trials, and a row's loss has the same bits in every
pack. It is given log-probabilities and not logits: those of all tokens over the vocabulary never exist at once.

Shapes:  n trained tokens of a row · T rows of the stream
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from cohort.core.errors import CohortError
from cohort.data.settings import RowReading
from cohort.data.tokenised import Sample
from cohort.kernels.staging import to_device_unwaited
from cohort.metrics.functions import UserFunction, find_function, raised_text
from cohort.training.objectives.declaration import ObjectiveDeclaration
from cohort.training.objectives.objective import Groups, Objective

__all__ = [
    "DECLARATION",
    "OBJECTIVE",
    "FunctionLoss",
    "LossFailedError",
    "forget_functions",
    "loss_function",
    "negative_log_likelihood",
    "row_loss",
]

DECLARATION = ObjectiveDeclaration(
    name="function",
    summary="a loss of each token by a function of one's own",
    reads=RowReading.ANSWERS,
)

_WRITE_ONE = "Write def NAME(log_probs, tokens): return a loss for each token; at the top level of a module."


class LossFailedError(CohortError):
    """A user's loss function raised, or returned what is no loss; names function, row and message."""


@dataclass(frozen=True, kw_only=True)
class FunctionLoss(Objective):
    """A row's term is the sum of its tokens' losses by the function; the divisor is the number of trained tokens.

    Attributes:
        function: ``module:function`` or ``/path/file.py:function``; each process finds it by that name. By default
            supervised fine-tuning.
    """

    reads_tokens: ClassVar[bool] = True
    function: str = f"{__name__}:negative_log_likelihood"

    def divisor(self, samples: Sequence[Sample]) -> int:
        """Return the trained tokens: a function that returns ``-log_probs`` is supervised fine-tuning."""
        return sum(int(sample.trained.sum()) for sample in samples)

    def terms(self, groups: Groups) -> Tensor:
        own = loss_function(self.function)
        rows = zip(groups.token_losses, groups.samples, strict=True)
        terms_G = torch.stack([row_loss(own, losses_n, sample).sum() for losses_n, sample in rows])
        _require_finite(own, terms_G, groups)
        return terms_G


def negative_log_likelihood(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """Return the loss of supervised fine-tuning, as a user's function would."""
    del tokens
    return -log_probs


@lru_cache
def loss_function(spelled: str) -> UserFunction:
    """Return the function of ``spelled`` as it was when this process first asked after :func:`forget_functions`.

    Raises:
        FunctionRefusedError: there is none, or it does not take log-probabilities and tokens.
    """
    return find_function(spelled, arguments=(None, None), write_one=_WRITE_ONE)


def forget_functions() -> None:
    """Let functions be found again, as their files are now: called when a task is prepared.

    Tasks that a shared session trains by then go on with what their files say now, and are not told.
    """
    loss_function.cache_clear()


def row_loss(own: UserFunction, losses_n: Tensor, sample: Sample) -> Tensor:
    """Return the loss of each trained token of a row by the user's function [n].

    Args:
        losses_n: ``-log p`` of each trained token.

    Raises:
        LossFailedError: the function raised, or returned something else.
    """
    tokens_n = to_device_unwaited(sample.tokens[sample.trained].astype("int64"), losses_n.device)
    log_probs_n = -losses_n
    call: Callable[..., Any] = own.function
    try:
        found = call(log_probs_n, tokens_n)
    except Exception as error:
        raise LossFailedError(f"{own.name} {raised_text(error, of=own.function)}, on {_row(sample)}") from error
    if not isinstance(found, Tensor) or found.shape != losses_n.shape or not found.is_floating_point():
        shown = f"a tensor {list(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else f"{found!r:.60}"
        wanted = f"a loss for each token, a tensor [{len(losses_n)}], without mean() or sum()"
        raise LossFailedError(f"{own.name} returned {shown}, not {wanted}, on {_row(sample)}")
    if torch.is_grad_enabled() and losses_n.requires_grad and len(losses_n) and not found.requires_grad:
        what = "a loss that does not depend on log_probs: without a gradient nothing is learned"
        raise LossFailedError(f"{own.name} returned {what}, on {_row(sample)}")
    return found.to(losses_n.dtype)


def _require_finite(own: UserFunction, terms_G: Tensor, groups: Groups) -> None:
    """Name the row whose loss is no number although the model's are: a model that diverged is for the exit rules."""
    model_G = torch.stack([losses.detach().sum() for losses in groups.token_losses])
    # one wait a pass; a row that is named is worth it
    bad = (~terms_G.detach().isfinite() & model_G.isfinite()).nonzero().flatten().tolist()
    if bad:
        value = float(terms_G[bad[0]].detach())
        raise LossFailedError(f"{own.name} returned a loss of {value}, on {_row(groups.samples[bad[0]])}")


def _row(sample: Sample) -> str:
    return sample.source or f"row {sample.sample_id}"


OBJECTIVE = FunctionLoss()
