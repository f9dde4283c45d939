"""Ops: each a folder with its reference, its Triton kernels and their joint entry point; no modules, no config."""

from __future__ import annotations

import importlib

__all__ = ["adamw", "cross_entropy", "dropout", "packed_linear", "rms_norm", "rope", "swiglu"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return importlib.import_module(f"cohort.kernels.{name}")
    raise AttributeError(f"module 'cohort.kernels' has no attribute {name!r}; ops: {', '.join(__all__)}")
