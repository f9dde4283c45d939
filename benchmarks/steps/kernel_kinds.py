"""Which kind of work a kernel of a step does, by its name."""

from __future__ import annotations

__all__ = ["kind_of"]

# by a part of a kernel's name, the first that fits
KINDS = (
    ("shrink", "lora"),
    ("expand", "lora"),
    ("output_side", "lora"),
    ("input_side", "lora"),
    ("sum_partials", "lora"),
    ("activate", "gate and lora"),
    ("query_gradient", "attention"),
    ("key_gradient", "attention"),
    ("gradient_kernel", "gate and lora"),
    ("hopper_product", "products"),
    ("gemm", "products"),
    ("nvjet", "products"),
    ("cutlass", "products"),
    ("_update_kernel", "optimizer"),
    ("norms_kernel", "optimizer"),
    ("delta_kernel", "attention"),
    ("_forward_kernel", "norms and activation"),
    ("_backward_kernel", "norms and activation"),
    ("forward_kernel", "attention"),
    ("rope", "rotary"),
    ("cross_entropy", "loss"),
    ("Memcpy", "copies"),
)


def kind_of(name: str) -> str:
    """Return the kind of a kernel by its name."""
    return next((kind for part, kind in KINDS if part in name), "other")
