"""The supported model families: one file each. A new dense family is a file with its ``FAMILY``."""

from __future__ import annotations

from cohort.core.discovery import offered_in
from cohort.models.families.family import ModelFamily

__all__ = ["FAMILIES", "ModelFamily"]

FAMILIES: dict[str, ModelFamily] = {family.model_type: family for family in offered_in(__name__, "FAMILY").values()}
