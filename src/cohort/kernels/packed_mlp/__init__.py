"""Packed feed-forward block: gate, up and down with every adapter of a pack, the activation never stored twice."""

from cohort.kernels.packed_mlp.op import fuses, packed_mlp

__all__ = ["fuses", "packed_mlp"]
