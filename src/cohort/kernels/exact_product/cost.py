"""What exact numerics cost where it was measured (``benchmarks/steps/exact_cost.py``): for doctor and run records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["MEASURED", "describe_cost"]

# By GPU: tokens of a pass, and a step's time over that of a fast one; adapters of rank 16 on an 8B shape.
MEASURED: Mapping[str, Sequence[tuple[int, float]]] = {
    "NVIDIA H100 80GB HBM3": ((1_020, 1.027), (8_192, 1.028)),
    "NVIDIA H200": ((1_020, 1.004), (4_088, 1.027), (8_192, 1.017)),
}


def describe_cost(gpu: str) -> str:
    """Return how much longer a step takes on the GPU called ``gpu``, or that it was not measured."""
    measured = MEASURED.get(gpu)
    if measured is None:
        return "what it costs was not measured on this GPU"
    found = ", ".join(f"{100 * (ratio - 1):.0f} % at {tokens:,} tokens" for tokens, ratio in measured)
    return f"a step over an 8B model takes longer by {found}"
