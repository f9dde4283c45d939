"""Whether the answer is the expected one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cohort.core.setting_fields import SettingField
from cohort.metrics.normalization import find_answer, normalized
from cohort.metrics.rewards.kinds.options import COLUMN, PATTERN
from cohort.metrics.rewards.reward import RewardFunction, RewardKind, expected_answer, texts_of

__all__ = ["REWARD"]


def _make(options: Mapping[str, Any]) -> RewardFunction:
    column, pattern = options["column"], options["pattern"]

    def exact_match(completions: Sequence[Any], **columns: Sequence[Any]) -> list[float | None]:
        found: list[float | None] = []
        for place, text in enumerate(texts_of(completions)):
            expected = expected_answer(columns, column=column, place=place)
            answer = find_answer(text, pattern)
            if expected is None:
                found.append(None)
                continue
            # an expected answer without the pattern's words is the answer itself
            right = find_answer(expected, pattern)
            right = expected.strip() if right is None else right
            if options["normalize"]:
                answer, right = None if answer is None else normalized(answer), normalized(right)
            found.append(float(answer == right))
        return found

    return exact_match


REWARD = RewardKind(
    name="exact_match",
    summary="1 where the answer equals the expected one, white space at the ends apart, else 0",
    make=_make,
    options={
        "column": COLUMN,
        "pattern": PATTERN,
        "normalize": SettingField(
            kind=bool,
            default=False,
            allowed="true | false",
            description="compare without case, punctuation and the articles a, an, the",
        ),
    },
)
