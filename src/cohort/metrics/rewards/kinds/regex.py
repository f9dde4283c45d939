"""Whether a text matches a regular expression."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cohort.core.setting_fields import SettingField
from cohort.metrics.rewards.kinds.options import PATTERN
from cohort.metrics.rewards.reward import RewardFunction, RewardKind, texts_of

__all__ = ["REWARD"]


def _make(options: Mapping[str, Any]) -> RewardFunction:
    pattern = re.compile(options["pattern"])
    matches = pattern.fullmatch if options["whole"] else pattern.search

    def regex(completions: Sequence[Any], **columns: Sequence[Any]) -> list[float | None]:
        del columns
        return [float(matches(text) is not None) for text in texts_of(completions)]

    return regex


REWARD = RewardKind(
    name="regex",
    summary="1 where the text matches a regular expression, else 0",
    make=_make,
    options={
        "pattern": SettingField(
            kind=str,
            default=None,
            allowed="a regular expression",
            description="what the text has to match; (?s) lets a dot match line breaks",
            check=PATTERN.check,
        ),
        "whole": SettingField(
            kind=bool,
            default=False,
            allowed="true | false",
            description="match the whole text; false: any part of it",
        ),
    },
    required=("pattern",),
)
