"""Whether the answer's number is the expected one; fractions, units and formulas are for ``math_verify``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from cohort.core.setting_fields import SettingField
from cohort.metrics.normalization import find_answer, last_number
from cohort.metrics.rewards.kinds.options import COLUMN, PATTERN
from cohort.metrics.rewards.reward import RewardFunction, RewardKind, expected_answer, texts_of

__all__ = ["REWARD"]


def _make(options: Mapping[str, Any]) -> RewardFunction:
    column, pattern, tolerance = options["column"], options["pattern"], Decimal(repr(options["tolerance"]))

    def number(text: str) -> Decimal | None:
        found = find_answer(text, pattern)
        return None if found is None else last_number(found)

    def numeric_answer(completions: Sequence[Any], **columns: Sequence[Any]) -> list[float | None]:
        found: list[float | None] = []
        for place, text in enumerate(texts_of(completions)):
            written = expected_answer(columns, column=column, place=place)
            # an expected answer without the pattern's words is the answer itself
            expected = None if written is None else last_number(find_answer(written, pattern) or written)
            answer = number(text)
            if expected is None:
                found.append(None)
            else:
                found.append(float(answer is not None and abs(answer - expected) <= tolerance))
        return found

    return numeric_answer


REWARD = RewardKind(
    name="numeric_answer",
    summary="1 where the last number equals the last one of the expected answer, else 0; 3, 3.0 and $3.00 are equal",
    make=_make,
    options={
        "column": COLUMN,
        "pattern": PATTERN,
        "tolerance": SettingField(
            kind=float,
            default=0.0,
            bounds={"ge": 0, "le": 1e9},
            allowed="a number of at least 0",
            description="how far the two numbers may be apart",
        ),
    },
)
