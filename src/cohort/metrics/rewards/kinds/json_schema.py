"""Whether a text is JSON of a wanted shape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cohort.core.setting_fields import Refusal, SettingField
from cohort.metrics.rewards.json_shape import schema_problems, shape_problem
from cohort.metrics.rewards.reward import RewardFunction, RewardKind, texts_of

__all__ = ["REWARD"]

# as chat models write it
_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", flags=re.DOTALL)


def _schema_refusals(value: object) -> Iterator[Refusal]:
    for where, found, allowed in schema_problems(value):
        yield Refusal(found=found, allowed=allowed, hint="Correct the schema.", at=where)


def _make(options: Mapping[str, Any]) -> RewardFunction:
    schema = options["schema"]

    def reward(text: str) -> float:
        fenced = _FENCED.fullmatch(text)
        try:
            value = json.loads(text if fenced is None else fenced[1], parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return 0.0
        return float(shape_problem(value, schema) is None)

    def json_schema(completions: Sequence[Any], **columns: Sequence[Any]) -> list[float | None]:
        del columns
        return [reward(text) for text in texts_of(completions)]

    return json_schema


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


REWARD = RewardKind(
    name="json_schema",
    summary="1 where the text, or the one block of code that it is, is JSON that a schema accepts, else 0",
    make=_make,
    options={
        "schema": SettingField(
            kind=dict,
            default=None,
            allowed="a JSON schema, such as {type: object, required: [name]}",
            description="what the JSON has to be; {}: any JSON",
            check=_schema_refusals,
        )
    },
    required=("schema",),
)
