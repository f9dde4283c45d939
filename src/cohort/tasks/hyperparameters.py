"""The hyperparameters that can be searched, and what one value of each may be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.core.setting_fields import Refusal
from cohort.tasks.fields import refuse
from cohort.tuning.parameters import MultipleOf, Value

__all__ = ["SEARCHABLE", "ValueKind", "is_number", "multiple_to_plain", "parse_alpha", "parse_value", "quoted_number"]

# what a person may type for a number, in quotes or out of them
_NUMBER = re.compile(r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$")
_MULTIPLE = re.compile(r"^\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)?\s*\*?\s*r\s*$")


@dataclass(frozen=True, kw_only=True)
class ValueKind:
    """What one hyperparameter may be.

    Attributes:
        allowed: In words.
        accepts: Whether one value, already of the right type, is in range.
        is_number, is_integer: What the value is; neither: a choice of words or a switch.
        example: A list that could be written.
    """

    allowed: str
    accepts: Callable[[Any], bool]
    example: str
    is_number: bool = True
    is_integer: bool = False
    is_rank_multiple_allowed: bool = False


def quoted_number(value: object) -> str | None:
    """Return the hint for a number that was written as text; None for anything else."""
    return f"Remove the quotes: {value.strip()}." if isinstance(value, str) and _NUMBER.match(value) else None


def is_number(value: object) -> bool:
    """Whether a value is a finite number, and no switch."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _positive(value: float) -> bool:
    return value > 0


def _not_negative(value: float) -> bool:
    return value >= 0


def _at_least_one(value: float) -> bool:
    return value >= 1


def _share_below_one(value: float) -> bool:
    return 0 <= value < 1


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)


SCHEDULER_TYPES = ("constant", "linear", "cosine")

SEARCHABLE: Mapping[str, ValueKind] = {
    "learning_rate": ValueKind(allowed="a number above 0", accepts=_positive, example="[1e-4, 3e-4]"),
    "r": ValueKind(allowed="a whole number of at least 1", accepts=_at_least_one, example="[8, 16]", is_integer=True),
    "lora_alpha": ValueKind(
        allowed="a number above 0, or a multiple of r such as 2r",
        accepts=_positive,
        example="2r",
        is_rank_multiple_allowed=True,
    ),
    "batch_size": ValueKind(
        allowed="a whole number of at least 1", accepts=_at_least_one, example="[1, 2, 4]", is_integer=True
    ),
    "lora_dropout": ValueKind(
        allowed="a number of at least 0 and below 1", accepts=_share_below_one, example="[0.0, 0.05]"
    ),
    "weight_decay": ValueKind(allowed="a number of at least 0", accepts=_not_negative, example="[0.0, 0.01]"),
    "warmup_ratio": ValueKind(
        allowed="a number of at least 0 and below 1", accepts=_share_below_one, example="[0.0, 0.1]"
    ),
    "lr_scheduler_type": ValueKind(
        allowed=" | ".join(SCHEDULER_TYPES),
        accepts=SCHEDULER_TYPES.__contains__,
        example="[constant, cosine]",
        is_number=False,
    ),
    "num_train_epochs": ValueKind(allowed="a number above 0", accepts=_positive, example="[1, 3]"),
    "max_grad_norm": ValueKind(
        allowed="a number of at least 0 (0: no clipping)", accepts=_not_negative, example="[0.3, 1.0]"
    ),
    "seed": ValueKind(
        allowed="a whole number of at least 0", accepts=_not_negative, example="[0, 1, 2]", is_integer=True
    ),
    "use_rslora": ValueKind(allowed="true | false", accepts=_is_switch, example="[true, false]", is_number=False),
}


def _parse_multiple(value: object) -> MultipleOf | None:
    match = _MULTIPLE.match(value) if isinstance(value, str) else None
    if match is None:
        return None
    factor = float(match.group(1) or 1)
    if factor <= 0 or not math.isfinite(factor):
        return None
    return MultipleOf(parameter="r", factor=int(factor) if factor.is_integer() else factor)


def parse_value(value: object, kind: ValueKind, *, at: tuple[str | int, ...]) -> Value | MultipleOf | Refusal:
    """Return the value as the kind wants it, or why it is refused."""
    if kind.is_rank_multiple_allowed and (multiple := _parse_multiple(value)) is not None:
        return multiple
    hint = quoted_number(value) or f"Write for instance {kind.example}."
    refusal = Refusal(found=repr(value), allowed=kind.allowed, hint=hint, at=at)
    if not kind.is_number:
        return value if isinstance(value, bool | str) and kind.accepts(value) else refusal
    if not isinstance(value, int | float) or not is_number(value) or not kind.accepts(value):
        return refusal
    if not kind.is_integer:
        return float(value)
    return int(value) if float(value).is_integer() else refusal


def parse_alpha(value: object) -> float | MultipleOf:
    """Return ``lora.lora_alpha``: a number above 0 or a multiple of r.

    Raises:
        pydantic_core.PydanticCustomError: it is neither.
    """
    if isinstance(value, MultipleOf):
        return value
    parsed = parse_value(value, SEARCHABLE["lora_alpha"], at=())
    if isinstance(parsed, Refusal):
        refuse(parsed)
    assert isinstance(parsed, float | MultipleOf), "the kind of lora_alpha gives numbers and multiples only"
    return parsed


def multiple_to_plain(multiple: MultipleOf) -> str:
    """Return ``2r``, which :func:`parse_value` reads back."""
    return f"{multiple.factor!r}{multiple.parameter}" if multiple.factor != 1 else multiple.parameter
