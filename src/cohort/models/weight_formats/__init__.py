"""The formats of frozen weights: one file each, one table. A new one is a file with its record and a line here."""

from __future__ import annotations

from cohort.models.weight_formats.plain import PLAIN
from cohort.models.weight_formats.weight_format import WeightFormat

__all__ = ["PLAIN", "WEIGHT_FORMATS", "WeightFormat"]

WEIGHT_FORMATS: dict[str, WeightFormat] = {weight_format.name: weight_format for weight_format in (PLAIN,)}
