"""Weights in 4-bit NormalFloat with scales that are quantised a second time, as QLoRA keeps them."""

from cohort.kernels.nf4_weight.op import Nf4Weight, dequantise, quantise

__all__ = ["Nf4Weight", "dequantise", "quantise"]
