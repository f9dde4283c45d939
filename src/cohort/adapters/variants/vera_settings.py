"""VeRA's settings, with the names of PEFT's VeraConfig; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["VectorAdapter"]


@dataclass(frozen=True, kw_only=True)
class VectorAdapter:
    """What PEFT's VeraConfig says of an adapter besides its rank and its dropout.

    Attributes:
        projection_prng_key: Seed of the frozen projections, at least 0.
        d_initial: What every entry of lambda_d begins with, above 0; lambda_b begins with zeros.
        save_projection: Write the projections into the adapter's file, so that no reader has to draw them again.
    """

    projection_prng_key: int = 0
    d_initial: float = 0.1
    save_projection: bool = True

    def __post_init__(self) -> None:
        if self.projection_prng_key < 0:
            raise ValueError(f"projection_prng_key must be at least 0, got {self.projection_prng_key}")
        # with zeros neither vector would ever have a gradient
        if not self.d_initial > 0:
            raise ValueError(f"d_initial must be above 0, got {self.d_initial}")
