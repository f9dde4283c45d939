"""Which models have exact numerics: those whose weights and attention have a form that gives each row its own bits."""

from __future__ import annotations

from collections.abc import Sequence

from cohort.core.errors import InputError, Problem
from cohort.kernels.packed_linear import FrozenProduct
from cohort.kernels.packed_linear.frozen_product import can_be_exact
from cohort.models.config import DecoderConfig

__all__ = ["require_exact_forms"]


def require_exact_forms(products: Sequence[FrozenProduct], *, config: DecoderConfig, is_divided: bool) -> None:
    """Raise unless all of a model can be computed exactly on a GPU.

    Args:
        products: All frozen products of the model.
        is_divided: Whether its layers are divided among several GPUs.

    Raises:
        InputError: a format of weights, or a rule of attention, has no such form.
    """
    other = next((product for product in products if not can_be_exact(product)), None)
    if other is not None:
        weights = "weights in 16 or 32 bits, fp8, int8 or nf4"
        raise _not_exact(found=f"frozen products of {type(other).__name__}", allowed=weights)
    if is_divided:
        whole = "strategy: replicas | adapter_parallel"
        raise _not_exact(found="a model whose layers are divided among several GPUs", allowed=whole)
    if config.pads_attention:
        what = f"attention of {config.family} that is computed in padded batches on a GPU"
        raise _not_exact(found=what, allowed="attention without soft-capped scores")


def _not_exact(*, found: str, allowed: str) -> InputError:
    return InputError(Problem(where="numerics: exact", found=found, allowed=allowed, hint="Set numerics: fast."))
