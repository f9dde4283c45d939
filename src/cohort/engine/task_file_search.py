"""What ``search.space`` may hold: values, ranges, and multiples of the LoRA rank.

learning_rate: [1e-5, 2e-4]                     a list of values
learning_rate: {min: 1e-5, max: 5e-4, log: true}   a range; whole numbers may have a step
r: 16                                           one fixed value
lora_alpha: 2r                                  a multiple of the trial's own r, alone or in a list
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticCustomError

from cohort.engine.task_file_refusal import Refusal, nearest_mend, number_mend, refusals_of, refuse

__all__ = [
    "SEARCHABLE",
    "Choices",
    "Dimension",
    "Interval",
    "RankMultiple",
    "ValueKind",
    "dimension_to_plain",
    "parse_alpha",
    "parse_dimension",
    "parse_space",
]

_MULTIPLE = re.compile(r"^\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)?\s*\*?\s*r\s*$")
_RANGE_KEYS = ("min", "max", "log", "step")


@dataclass(frozen=True, kw_only=True)
class RankMultiple:
    """``lora_alpha`` as ``factor`` times the trial's own r."""

    factor: float

    def __str__(self) -> str:
        return "r" if self.factor == 1 else f"{self.factor:g}r"


Value = float | int | bool | str | RankMultiple


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A list of values, in the order written; at least one, none twice."""

    values: tuple[Value, ...]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """All numbers from ``min`` to ``max``, both included.

    Attributes:
        is_integer: Only whole numbers.
        log: Spread evenly over the logarithm.
        step: Distance of the values, from ``min`` on; None for every number (every whole number if ``is_integer``).
    """

    min: float
    max: float
    is_integer: bool
    log: bool = False
    step: float | None = None

    @property
    def num_values(self) -> int | None:
        """How many values there are (whole numbers, or a step); None when they cannot be counted."""
        if self.step is None and not self.is_integer:
            return None
        step = 1 if self.step is None else self.step
        # a billionth of slack: 0.1 + 2 * 0.1 must reach 0.3
        return math.floor((self.max - self.min) / step * (1 + 1e-9) + 1e-9) + 1

    def values(self) -> tuple[float, ...]:
        """Return the values, increasing.

        Raises:
            ValueError: they cannot be counted.
        """
        if (count := self.num_values) is None:
            raise ValueError(f"the numbers from {self.min} to {self.max} cannot be listed without a step")
        step = 1 if self.step is None else self.step
        return tuple(self.min + index * step for index in range(count))


Dimension = Choices | Interval


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


def _is_number(value: object) -> bool:
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


def _parse_multiple(value: object) -> RankMultiple | None:
    match = _MULTIPLE.match(value) if isinstance(value, str) else None
    if match is None:
        return None
    factor = float(match.group(1) or 1)
    return RankMultiple(factor=factor) if factor > 0 and math.isfinite(factor) else None


def _parse_value(value: object, kind: ValueKind, *, at: tuple[str | int, ...]) -> Value | Refusal:
    """Return the value as the kind wants it, or why it is refused."""
    if kind.is_rank_multiple_allowed and (multiple := _parse_multiple(value)) is not None:
        return multiple
    refusal = Refusal(found=repr(value), allowed=kind.allowed, mend=number_mend(value, example=kind.example), at=at)
    if not kind.is_number:
        return value if isinstance(value, bool | str) and kind.accepts(value) else refusal
    if not isinstance(value, int | float) or not _is_number(value) or not kind.accepts(value):
        return refusal
    if not kind.is_integer:
        return float(value)
    return int(value) if float(value).is_integer() else refusal


def _parse_list(entries: list[Any], kind: ValueKind) -> Choices:
    if not entries:
        refuse(Refusal(found="an empty list", allowed=kind.allowed, mend=f"Write for instance {kind.example}."))
    parsed = [_parse_value(entry, kind, at=(index,)) for index, entry in enumerate(entries)]
    refusals = [entry for entry in parsed if isinstance(entry, Refusal)]
    values = [entry for entry in parsed if not isinstance(entry, Refusal)]
    for index, value in enumerate(parsed):
        if value in parsed[:index] and not isinstance(value, Refusal):
            mend = "Remove one of the two; to repeat a configuration, search over seed."
            refusals.append(
                Refusal(found=f"{entries[index]!r} twice", allowed="each value once", mend=mend, at=(index,))
            )
    if refusals:
        refuse(*sorted(refusals, key=lambda refusal: refusal.at))
    return Choices(values=tuple(values))


def _parse_range(value: Mapping[str, Any], kind: ValueKind) -> Interval:
    if not kind.is_number:
        refuse(
            Refusal(found="a range", allowed=f"a list of {kind.allowed}", mend=f"Write for instance {kind.example}.")
        )
    allowed_keys = "min, max, and optionally log: true or step"
    refusals = [
        Refusal(found=f"the key {key!r}", allowed=allowed_keys, mend="Write {min: ..., max: ...}.", at=(key,))
        for key in value
        if key not in _RANGE_KEYS
    ]
    bounds: dict[str, float] = {}
    for name in ("min", "max"):
        if name not in value:
            mend = f"Add {name}, or write a list such as {kind.example}."
            refusals.append(Refusal(found=f"a range without {name}", allowed=allowed_keys, mend=mend))
            continue
        bound = _parse_value(value[name], kind, at=(name,))
        if isinstance(bound, Refusal):
            refusals.append(bound)
        elif isinstance(bound, RankMultiple):
            mend = "Write numbers, or a list such as [1r, 2r]."
            refusals.append(Refusal(found=repr(value[name]), allowed="a number", mend=mend, at=(name,)))
        elif not isinstance(bound, str):
            bounds[name] = bound
    log, step = value.get("log", False), value.get("step")
    if not isinstance(log, bool):
        refusals.append(Refusal(found=repr(log), allowed="true | false", mend="Write log: true.", at=("log",)))
    if step is not None and (not _is_number(step) or step <= 0 or (kind.is_integer and not float(step).is_integer())):
        allowed = "a whole number above 0" if kind.is_integer else "a number above 0"
        refusals.append(Refusal(found=repr(step), allowed=allowed, mend="Correct the step.", at=("step",)))
    if len(bounds) == 2 and bounds["min"] >= bounds["max"]:
        found = f"min {bounds['min']:g} and max {bounds['max']:g}"
        refusals.append(Refusal(found=found, allowed="min below max", mend="Exchange the two, or write a list."))
    if log is True and step is not None:
        refusals.append(Refusal(found="log and step", allowed="one of the two", mend="Remove step.", at=("step",)))
    if log is True and bounds.get("min", 1.0) <= 0:
        mend = "Raise min above 0, or remove log."
        refusals.append(Refusal(found=f"min {bounds['min']:g} with log", allowed="min above 0", mend=mend, at=("min",)))
    if refusals:
        refuse(*refusals)
    step_value = None if step is None else (int(step) if kind.is_integer else float(step))
    return Interval(min=bounds["min"], max=bounds["max"], is_integer=kind.is_integer, log=log, step=step_value)


def parse_dimension(value: object, *, kind: ValueKind) -> Dimension:
    """Return one entry of ``search.space``, checked against what the hyperparameter may be.

    Raises:
        pydantic_core.PydanticCustomError: something is wrong; it carries every :class:`Refusal`.
    """
    if isinstance(value, Choices | Interval):
        return value
    if isinstance(value, list | tuple):
        return _parse_list(list(value), kind)
    if isinstance(value, Mapping):
        return _parse_range(value, kind)
    single = _parse_value(value, kind, at=())
    if isinstance(single, Refusal):
        refuse(single)
    return Choices(values=(single,))


def parse_space(value: object) -> object:
    """Return ``search.space`` as dimensions by name, in the order written; what is no mapping is left to the caller.

    Raises:
        pydantic_core.PydanticCustomError: it carries every :class:`Refusal` of every key.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return value
    refusals: list[Refusal] = []
    space: dict[str, Dimension] = {}
    for name, entry in value.items():
        if name not in SEARCHABLE:
            mend = nearest_mend(str(name), SEARCHABLE, prefix="search.space.")
            allowed = f"keys that can be searched: {', '.join(SEARCHABLE)}"
            refusals.append(Refusal(found=f"the unknown key {name!r}", allowed=allowed, mend=mend, at=(name,)))
            continue
        try:
            space[name] = parse_dimension(entry, kind=SEARCHABLE[name])
        except PydanticCustomError as error:
            refusals += [refusal.below(name) for refusal in refusals_of(error.context)]
    if refusals:
        refuse(*refusals)
    return space


def parse_alpha(value: object) -> float | RankMultiple:
    """Return ``lora.lora_alpha``: a number above 0 or a multiple of r.

    Raises:
        pydantic_core.PydanticCustomError: it is neither.
    """
    if isinstance(value, RankMultiple):
        return value
    parsed = _parse_value(value, SEARCHABLE["lora_alpha"], at=())
    if isinstance(parsed, Refusal):
        refuse(parsed)
    assert isinstance(parsed, float | RankMultiple), "the kind of lora_alpha gives numbers and multiples only"
    return parsed


def dimension_to_plain(dimension: Dimension) -> Any:
    """Return the YAML form that :func:`parse_dimension` reads back."""
    if isinstance(dimension, Interval):
        plain: dict[str, Any] = {"min": dimension.min, "max": dimension.max}
        if dimension.log:
            plain["log"] = True
        if dimension.step is not None:
            plain["step"] = dimension.step
        return plain
    return [str(value) if isinstance(value, RankMultiple) else value for value in dimension.values]
