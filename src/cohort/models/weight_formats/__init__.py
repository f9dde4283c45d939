"""The formats of frozen weights: one file each. A new one is a file with its ``FORMAT``."""

from __future__ import annotations

from cohort.core.discovery import offered_in
from cohort.models.weight_formats.nf4 import FORMAT as NF4
from cohort.models.weight_formats.plain import FORMAT as PLAIN
from cohort.models.weight_formats.weight_format import WeightFormat

__all__ = ["NF4", "PLAIN", "WEIGHT_FORMATS", "WeightFormat"]

WEIGHT_FORMATS: dict[str, WeightFormat] = {found.name: found for found in offered_in(__name__, "FORMAT").values()}
