"""Whether a text consists of certain parts, each between tags: ``<think>...</think><answer>...</answer>``.

Source: DeepSeek-R1 (2025), section 2.2.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cohort.core.setting_fields import Refusal, SettingField
from cohort.metrics.rewards.reward import RewardFunction, RewardKind, texts_of

__all__ = ["REWARD"]

_ALLOWED = "a list of names, such as [think, answer]"


def _tag_refusals(value: object) -> Iterator[Refusal]:
    names = value if isinstance(value, list | tuple) else ()
    if not names or not all(isinstance(name, str) and re.fullmatch(r"[\w-]+", name) for name in names):
        yield Refusal(found=repr(value), allowed=_ALLOWED, hint="Write tags: [think, answer], without < and >.")
    elif len(set(names)) < len(names):
        yield Refusal(found=repr(list(names)), allowed="each name once", hint="Remove the second one.")


def _make(options: Mapping[str, Any]) -> RewardFunction:
    tags = options["tags"]
    pattern = re.compile(r"\s*" + r"\s*".join(f"<{tag}>(.*?)</{tag}>" for tag in tags) + r"\s*", flags=re.DOTALL)

    def format_(completions: Sequence[Any], **columns: Sequence[Any]) -> list[float | None]:
        del columns
        found: list[float | None] = []
        for text in texts_of(completions):
            # a part that holds a tag again would match as well
            once = all(text.count(f"<{tag}>") == text.count(f"</{tag}>") == 1 for tag in tags)
            found.append(float(once and pattern.fullmatch(text) is not None))
        return found

    return format_


REWARD = RewardKind(
    name="format",
    summary="1 where the text is made of the given tags, each once and in this order, else 0",
    make=_make,
    options={
        "tags": SettingField(
            kind=list,
            default=("think", "answer"),
            allowed=_ALLOWED,
            description="names of the tags",
            check=_tag_refusals,
        )
    },
)
