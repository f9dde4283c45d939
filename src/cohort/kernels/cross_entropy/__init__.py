"""Loss head and cross-entropy in one op, without a tensor of tokens x vocabulary."""

from cohort.kernels.cross_entropy.op import linear_cross_entropy, logits_bytes, price_rows, weighted_gradient

__all__ = ["linear_cross_entropy", "logits_bytes", "price_rows", "weighted_gradient"]
