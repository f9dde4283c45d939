"""Makes a model and its bank give a trial the same bits whatever is packed with it; or be as fast as they can."""

from __future__ import annotations

from cohort.adapters.bank import AdapterBank
from cohort.core.errors import InputError, Problem
from cohort.core.numerics import Numerics
from cohort.kernels.backend import Backend, choose_backend, describe_backend
from cohort.models.decoder import Decoder

__all__ = ["set_numerics"]


def set_numerics(numerics: Numerics, *, decoder: Decoder, bank: AdapterBank) -> None:
    """Take the products and launches of ``numerics`` where the grouped kernels run; a CPU is exact as it is.

    A decoder computes as the executor needs that was built for it last.

    Raises:
        InputError: a GPU without Triton's kernels, or a model without an exact form.
    """
    if numerics is Numerics.FAST:
        decoder.use_exact_products(exact=False)
        return
    if choose_backend(bank.compute_RD) is not Backend.TRITON:
        if bank.compute_RD.is_cuda:
            raise InputError(
                Problem(
                    where="numerics: exact",
                    found=f"a GPU without Triton's kernels ({describe_backend(bank.compute_RD.device).reason})",
                    allowed="a CPU, or a GPU with Triton",
                    hint="Set numerics: fast, or install Triton.",
                )
            )
        return
    decoder.use_exact_products()
    bank.is_exact = True
