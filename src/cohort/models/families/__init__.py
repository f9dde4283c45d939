"""The supported families: one file each, one table. A new dense family is a file with its record and a line here."""

from __future__ import annotations

from cohort.models.families.family import ModelFamily
from cohort.models.families.gemma2 import GEMMA2
from cohort.models.families.llama import LLAMA
from cohort.models.families.mistral import MISTRAL
from cohort.models.families.qwen2 import QWEN2
from cohort.models.families.qwen3 import QWEN3

__all__ = ["FAMILIES", "ModelFamily"]

FAMILIES: dict[str, ModelFamily] = {family.model_type: family for family in (GEMMA2, LLAMA, MISTRAL, QWEN2, QWEN3)}
