"""Rotary position embedding of queries and keys."""

from cohort.kernels.rope.op import apply_rope, split_and_rotate

__all__ = ["apply_rope", "split_and_rotate"]
