"""The formats of frozen weights themselves, by the names that their files declare."""

from __future__ import annotations

from cohort.models.weight_formats.declaration import FORMAT_DECLARATIONS
from cohort.models.weight_formats.weight_format import WeightFormat

__all__ = ["NF4", "PLAIN", "WEIGHT_FORMATS", "all_formats", "format_named"]

WEIGHT_FORMATS: dict[str, WeightFormat] = {
    entry.name: FORMAT_DECLARATIONS.load(entry.name) for entry in FORMAT_DECLARATIONS.built_in()
}
"""Cohort's own formats by name."""

PLAIN, NF4 = WEIGHT_FORMATS["none"], WEIGHT_FORMATS["nf4"]


def format_named(name: str) -> WeightFormat:
    """Return a format of Cohort or of an installed package.

    Raises:
        KeyError: there is none of this name.
        InputError: the package's format cannot be used.
    """
    found: WeightFormat = WEIGHT_FORMATS.get(name) or FORMAT_DECLARATIONS.load(name)
    return found


def all_formats() -> tuple[WeightFormat, ...]:
    """Return all formats that can be used, Cohort's own first."""
    others = (entry.name for entry in FORMAT_DECLARATIONS.usable() if entry.name not in WEIGHT_FORMATS)
    return (*WEIGHT_FORMATS.values(), *map(format_named, others))
