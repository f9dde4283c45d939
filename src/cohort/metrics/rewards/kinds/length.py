"""Whether a text has the wanted length; outside it, the reward falls linearly to 0.

With ``most`` and ``slack`` this is 1 plus DAPO's soft punishment of overlong answers (Yu et al. 2025, equation 13).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cohort.core.setting_fields import MOST_COUNT, Refusal, SettingField, count_words
from cohort.metrics.rewards.reward import RewardFunction, RewardKind, texts_of

__all__ = ["REWARD"]

_UNITS = ("tokens", "words", "characters")


def _count_refusals(value: object) -> Iterator[Refusal]:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_COUNT):
        yield Refusal(found=repr(value), allowed=count_words(minimum=0), hint="Write a whole number.")


def _together(options: Mapping[str, Any]) -> list[Refusal]:
    least, most = options["least"], options["most"]
    if least is None and most is None:
        hint = "Write for example most: 200."
        return [Refusal(found="length without least and most", allowed="at least one of the two", hint=hint)]
    if least is not None and most is not None and least > most:
        found = f"least {least} and most {most}"
        return [Refusal(found=found, allowed="least up to most", hint="Exchange the two.", at=("least",))]
    return []


def _make(options: Mapping[str, Any]) -> RewardFunction:
    least, most, slack, unit = (options[name] for name in ("least", "most", "slack", "unit"))

    def reward(count: int) -> float:
        away = max(0 if most is None else count - most, 0 if least is None else least - count, 0)
        return 1.0 if away == 0 else max(0.0, 1 - away / slack) if slack else 0.0

    def length(
        completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], **columns: Sequence[Any]
    ) -> list[float | None]:
        del columns
        if unit == "tokens":
            return [reward(len(ids)) for ids in completion_ids]
        texts = texts_of(completions)
        return [reward(len(text.split()) if unit == "words" else len(text)) for text in texts]

    return length


def _count(description: str, default: int | None) -> SettingField:
    return SettingField(
        kind=int | None if default is None else int,
        default=default,
        allowed=count_words(minimum=0),
        description=description,
        check=_count_refusals,
    )


REWARD = RewardKind(
    name="length",
    summary="1 for a text of the wanted length, falling to 0 within slack outside of it",
    make=_make,
    options={
        "least": _count("fewest tokens, words or characters; null: none are too few", None),
        "most": _count("most of them; null: none are too many", None),
        "slack": _count("how far outside the reward falls to 0", 0),
        "unit": SettingField(
            kind=str,
            default="tokens",
            options=_UNITS,
            allowed=" | ".join(_UNITS),
            description="what is counted",
        ),
    },
    together=_together,
)
