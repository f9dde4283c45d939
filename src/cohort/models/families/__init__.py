"""The supported families: one file each, one table."""

from __future__ import annotations

from cohort.models.families.family import Family
from cohort.models.families.llama import LLAMA
from cohort.models.families.mistral import MISTRAL
from cohort.models.families.qwen2 import QWEN2
from cohort.models.families.qwen3 import QWEN3

__all__ = ["FAMILIES", "Family"]

FAMILIES: dict[str, Family] = {family.model_type: family for family in (LLAMA, MISTRAL, QWEN2, QWEN3)}
