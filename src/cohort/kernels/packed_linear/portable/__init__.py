"""Triton kernels of the packed linear for any GPU that Triton compiles for."""
