"""Root-mean-square normalisation, alone and fused with the residual add before it."""

from cohort.kernels.rms_norm.op import add_rms_norm, fork_rms_norm, rms_norm

__all__ = ["add_rms_norm", "fork_rms_norm", "rms_norm"]
