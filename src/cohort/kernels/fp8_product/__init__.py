"""Products with a frozen weight in 8-bit floats: rows are rounded as they arrive, each with a scale of its own."""

from cohort.kernels.fp8_product.op import Fp8Rows, fp8_forward, fp8_grad_input, fp8_problem, quantise_rows, transposed

__all__ = ["Fp8Rows", "fp8_forward", "fp8_grad_input", "fp8_problem", "quantise_rows", "transposed"]
