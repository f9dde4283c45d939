"""Products with a frozen weight in 8-bit floats: rows are rounded as they arrive, each with a scale of its own."""

from cohort.kernels.fp8_product.handed_gradient import CodeRoom, HandedGradient, handed_behind, write_codes
from cohort.kernels.fp8_product.op import (
    Fp8Rows,
    empty_rows,
    fp8_forward,
    fp8_grad_input,
    fp8_problem,
    has_product,
    quantise_rows,
    transposed,
)

__all__ = [
    "CodeRoom",
    "Fp8Rows",
    "HandedGradient",
    "empty_rows",
    "fp8_forward",
    "fp8_grad_input",
    "fp8_problem",
    "handed_behind",
    "has_product",
    "quantise_rows",
    "transposed",
    "write_codes",
]
