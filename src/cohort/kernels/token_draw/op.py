"""The public ops: a token of each row, and the logarithm of a token's probability, both in float64.

Shapes:  B rows of logits · C rows that are asked for · V vocabulary
"""

from __future__ import annotations

from torch import Tensor

from cohort.kernels.backend import Backend, choose_backend, implementation

__all__ = ["draw_tokens", "picked_logprobs"]


def draw_tokens(
    logits_BV: Tensor, *, rows_C: Tensor, temperatures_C: Tensor, draws_C: Tensor, backend: Backend | None = None
) -> Tensor:
    """Return the first token [C] at which the cumulative distribution, in the order of ids, is above the draw.

    A row's token depends on its logits, its temperature and its draw alone. Rows whose logits are not all finite get
    some token.

    Args:
        rows_C: int64 numbers of rows.
        temperatures_C: float64, above 0: the logits are divided by them.
        draws_C: float64 in [0, 1).
    """
    kernels = implementation("token_draw", choose_backend(logits_BV, backend=backend))
    found: Tensor = kernels.draw_tokens(logits_BV, rows_C=rows_C, temperatures_C=temperatures_C, draws_C=draws_C)
    return found


def picked_logprobs(
    logits_BV: Tensor, *, rows_C: Tensor, tokens_C: Tensor, temperatures_C: Tensor, backend: Backend | None = None
) -> Tensor:
    """Return ``log softmax(logits / temperature)`` of a token of each row, float64 [C]."""
    kernels = implementation("token_draw", choose_backend(logits_BV, backend=backend))
    found: Tensor = kernels.picked_logprobs(logits_BV, rows_C=rows_C, tokens_C=tokens_C, temperatures_C=temperatures_C)
    return found
