"""Loss head and cross-entropy in one op, without a tensor of tokens x vocabulary."""

from cohort.kernels.cross_entropy.op import linear_cross_entropy, logits_bytes, price_rows, weighted_gradient
from cohort.kernels.cross_entropy.trained_head import TrainedHead, add_head_gradient

__all__ = [
    "TrainedHead",
    "add_head_gradient",
    "linear_cross_entropy",
    "logits_bytes",
    "price_rows",
    "weighted_gradient",
]
