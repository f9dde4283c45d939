"""Scales of an adapter that differ between modules, as factors on the columns of its B.

A kernel has one scale a slot. Where PEFT's patterns give a module another rank or alpha, products read B times the
module's own scale over the slot's, and the gradient of B is multiplied by the same factor: exact up to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec

__all__ = ["module_scales"]


def module_scales(layout: AdapterLayout, spec: AdapterSpec) -> Tensor | None:
    """Return the factor of each column [D], float64 on the host; None where all modules have the slot's scale."""
    if not spec.has_patterns:
        return None
    factors_D = torch.ones(layout.width, dtype=torch.float64)
    for name, columns in layout.columns.items():
        factors_D[columns.b] = spec.scale_of(name) / spec.scale
    return None if bool((factors_D == 1.0).all()) else factors_D
