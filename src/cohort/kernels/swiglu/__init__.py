"""The gated activation of the feed-forward block."""

from cohort.kernels.swiglu.op import swiglu

__all__ = ["swiglu"]
