"""The model families: one file each. A new one is a file here with its ``FAMILY``.

In another package, it is an entry point of ``cohort.model_families``, named as the ``model_type`` of ``config.json``.
"""

from __future__ import annotations

from cohort.core.registry import Registry
from cohort.models.families.family import ModelFamily

__all__ = ["FAMILIES", "ModelFamily"]

FAMILIES = Registry(
    kind=ModelFamily,
    noun="model family",
    package="cohort.models.families",
    constant="FAMILY",
    group="cohort.model_families",
    default="llama",
)
