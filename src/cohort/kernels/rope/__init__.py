"""Rotary position embedding of queries and keys."""

from cohort.kernels.rope.op import apply_rope

__all__ = ["apply_rope"]
