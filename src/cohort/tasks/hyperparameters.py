"""The hyperparameters that can be searched, and what one value of each may be."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from cohort.adapters.spec import INITIALISATIONS
from cohort.core.setting_fields import (
    MOST_NUMBER,
    Refusal,
    SettingField,
    choice,
    count_words,
    flag,
    number,
    number_words,
    setting_fields,
    whole,
    word,
)
from cohort.core.source_location import KeyPath
from cohort.tasks.fields import as_whole, as_word, refuse
from cohort.training.objectives.declaration import OBJECTIVE_DECLARATIONS, searched_of
from cohort.training.optimizers.declaration import DEFAULT_OPTIMIZER_NAME, OPTIMIZER_DECLARATIONS
from cohort.training.schedules import Schedule
from cohort.tuning.parameters import MultipleOf, Value

__all__ = [
    "LORA_ALPHA",
    "MOST_RANK",
    "NBLOCKS",
    "SECTION_OF",
    "SEARCHABLE",
    "LoraKeys",
    "TrainingKeys",
    "ValueKind",
    "is_number",
    "key_of",
    "multiple_to_plain",
    "parse_alpha",
    "parse_value",
    "quoted_number",
    "unbounded_number",
]

MOST_RANK = 1_048_576
"""Above the width of any layer that there is."""

# what a person may type for a number, in quotes or out of them
_NUMBER = re.compile(r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$")
# less is 0 in float32, and divides the zero gradients of the first step by zero
LEAST_EPSILON = 1e-30
# 2r, 2 * r, 0.5r, r
_MULTIPLE = re.compile(r"^\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)?\s*\*?\s*r\s*$")
# with the largest r it is a scale that can be computed with
_MOST_FACTOR = 10_000


def _read_by(key: str, description: str) -> str:
    # Cohort's own optimizers alone: this is called while Cohort is imported, when no other package may be searched for
    readers = [entry.name for entry in OPTIMIZER_DECLARATIONS.built_in() if key in entry.reads]
    return f"{', '.join(readers)}: {description}"


@dataclass(frozen=True, kw_only=True)
class LoraKeys:
    """Keys of the ``lora`` section; all but ``save_projection`` can be searched."""

    lora_dropout: float = number(0.0, "dropout on an adapter's input", below=1)
    use_rslora: bool = flag(False, "scale by lora_alpha / sqrt(r) instead of lora_alpha / r")
    init_lora_weights: str = word(
        "true",
        "what A and B begin with",
        pattern=INITIALISATIONS,
        allowed="true | gaussian | olora | pissa | pissa_niter_N with a number N",
    )
    use_dora: bool = flag(False, "DoRA: train the magnitude of each output next to its direction")
    use_vera: bool = flag(False, "VeRA: train vectors around frozen random projections that all linears share")
    d_initial: float = number(0.1, "use_vera: what the vector lambda_d begins with", minimum=None)
    projection_prng_key: int = whole(0, "use_vera: seed of the projections", minimum=0, most=2**63 - 1)
    save_projection: bool = flag(True, "use_vera: write the projections into adapters, as PEFT does by default")
    r: int = whole(16, "rank of an adapter", most=MOST_RANK)


@dataclass(frozen=True, kw_only=True)
class TrainingKeys:
    """Keys of the ``training`` section; all but ``max_steps`` can be searched."""

    num_train_epochs: float = number(
        3.0, "passes over the training rows; max_steps overrides it", minimum=None, most=1e6
    )
    max_steps: int | None = whole(None, "optimizer steps instead of epochs")
    lr_scheduler_type: str = choice(
        "constant", "shape of the learning rate over the planned steps", options=tuple(kind.value for kind in Schedule)
    )
    warmup_ratio: float = number(0.0, "share of steps the rate climbs over", below=1)
    weight_decay: float = number(0.01, "AdamW's decoupled decay")
    max_grad_norm: float = number(1.0, "norm the gradient is clipped to; 0: no clipping")
    seed: int = whole(0, "seed of the task and of its trials", minimum=0, most=2**63 - 1)
    # Above what any trial survives: a rate that overflows at once is a way to see what the others do then.
    learning_rate: float = number(2e-4, "peak learning rate", minimum=None, most=1e30)
    adam_beta1: float = number(0.9, _read_by("adam_beta1", "weight of the past in the mean gradient"), below=1)
    adam_beta2: float = number(0.999, _read_by("adam_beta2", "weight of the past in the mean square"), below=1)
    adam_epsilon: float = number(
        1e-8, _read_by("adam_epsilon", "added to the root of the mean square"), minimum=LEAST_EPSILON, most=1
    )
    optim: str = choice(
        DEFAULT_OPTIMIZER_NAME,
        "the optimizer",
        options=tuple(entry.name for entry in OPTIMIZER_DECLARATIONS.built_in()),
    )
    loraplus_lr_ratio: float = number(1.0, "LoRA+: learning rate of B as a multiple of that of A", minimum=None)
    batch_size: int = whole(8, "examples per optimizer step of one adapter")


# not a field of LoraKeys: its default is a number, but a task may write a multiple of r, which needs a parser
LORA_ALPHA = SettingField(
    kind=float,
    default=32.0,
    bounds={"gt": 0, "le": MOST_NUMBER},
    allowed=f"{number_words(minimum=None)}, or a multiple of r such as 2r",
    description="numerator of the scale",
)


@dataclass(frozen=True, kw_only=True)
class ValueKind:
    """What one searched hyperparameter may be.

    Attributes:
        field: The key that it has in a section.
        example: A list that could be written.
        is_rank_multiple_allowed: Whether it may follow the trial's own r.
    """

    field: SettingField
    example: str
    is_rank_multiple_allowed: bool = False

    @property
    def allowed(self) -> str:
        return self.field.allowed

    @property
    def is_integer(self) -> bool:
        return self.field.kind is int

    @property
    def is_number(self) -> bool:
        """False for a choice of words and a switch."""
        return self.field.kind in (int, float)


# a key of the section `use_bdlora` within `lora`
NBLOCKS = SettingField(
    kind=int,
    default=1,
    bounds={"ge": 1, "le": MOST_RANK},
    allowed=count_words(most=MOST_RANK),
    description="blocks of each block-diagonal factor; 1: plain LoRA",
)

# in the order in which messages and the schema list them
_EXAMPLES = {
    "learning_rate": "[1e-4, 3e-4]",
    "r": "[8, 16]",
    "lora_alpha": "2r",
    "batch_size": "[1, 2, 4]",
    "lora_dropout": "[0.0, 0.05]",
    "weight_decay": "[0.0, 0.01]",
    "warmup_ratio": "[0.0, 0.1]",
    "lr_scheduler_type": "[constant, cosine]",
    "num_train_epochs": "[1, 3]",
    "max_grad_norm": "[0.3, 1.0]",
    "adam_beta1": "[0.8, 0.9]",
    "adam_beta2": "[0.95, 0.999]",
    "adam_epsilon": "[1e-8, 1e-6]",
    "seed": "[0, 1, 2]",
    "use_rslora": "[true, false]",
    "loraplus_lr_ratio": "[1, 4, 16]",
    "optim": "[adamw, lion]",
    "init_lora_weights": "[true, pissa_niter_4]",
    "use_dora": "[true, false]",
    "use_vera": "[true, false]",
    "d_initial": "[0.1, 1.0]",
    "projection_prng_key": "[0, 1]",
    "nblocks": "[1, 2, 4]",
}
_LORA = {**setting_fields(LoraKeys), "lora_alpha": LORA_ALPHA}
_FIELDS = {**_LORA, "nblocks": NBLOCKS, **setting_fields(TrainingKeys)}
_SECTIONS = {"lora": _LORA, "lora.use_bdlora": ("nblocks",)}


class _Searchable(Mapping[str, ValueKind]):
    """What each key may be. Those of objectives are what their files declare, installed packages included.

    Packages are looked up when a key is asked for: this is made while Cohort is imported.
    """

    def __init__(self) -> None:
        self.own: Mapping[str, ValueKind] = {
            name: ValueKind(field=_FIELDS[name], example=example, is_rank_multiple_allowed=name == "lora_alpha")
            for name, example in _EXAMPLES.items()
        }

    @property
    def built_in(self) -> tuple[str, ...]:
        """The keys of Cohort alone."""
        return (*self.own, *searched_of(OBJECTIVE_DECLARATIONS.built_in()))

    def __getitem__(self, name: str) -> ValueKind:
        if name == "optim":
            names, own = OPTIMIZER_DECLARATIONS.names(), self.own[name]
            return replace(own, field=replace(own.field, options=names, allowed=" | ".join(names)))
        if name in self.own:
            return self.own[name]
        value = searched_of(OBJECTIVE_DECLARATIONS.usable())[name]
        return ValueKind(field=value.setting, example=value.example)

    def __iter__(self) -> Iterator[str]:
        # a package's objective cannot give a key another meaning
        return iter(dict.fromkeys((*self.own, *searched_of(OBJECTIVE_DECLARATIONS.usable()))))

    def __len__(self) -> int:
        return len(list(iter(self)))


class _SectionOf(Mapping[str, str]):
    """The section, by its dotted name, that holds a searchable key where ``search.space`` does not."""

    def __getitem__(self, name: str) -> str:
        if name not in SEARCHABLE:
            raise KeyError(name)
        if name not in _EXAMPLES:
            return "objective"
        return next((section for section, keys in _SECTIONS.items() if name in keys), "training")

    def __iter__(self) -> Iterator[str]:
        return iter(SEARCHABLE)

    def __len__(self) -> int:
        return len(SEARCHABLE)


SEARCHABLE = _Searchable()
SECTION_OF: Mapping[str, str] = _SectionOf()


def key_of(name: str) -> KeyPath:
    """Return the full key of a searchable hyperparameter in its section."""
    return (*SECTION_OF[name].split("."), name)


def quoted_number(value: object) -> str | None:
    """Return the hint for a number that was written as text; None for anything else."""
    return f"Remove the quotes: {value.strip()}." if isinstance(value, str) and _NUMBER.match(value) else None


def unbounded_number(value: object, *, example: object) -> str | None:
    """Return the hint for infinity and NaN; None for anything else."""
    is_unbounded = isinstance(value, float) and not math.isfinite(value)
    return f"Write a finite number, for example {example}." if is_unbounded else None


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether ``value`` is a number that can be computed with; true and false are none."""
    # compared and not asked: a whole number may be larger than any float, and NaN is no larger than itself
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return -MOST_NUMBER <= value <= MOST_NUMBER


def _parse_multiple(value: object) -> MultipleOf | None:
    match = _MULTIPLE.match(value) if isinstance(value, str) else None
    if match is None:
        return None
    factor = float(match.group(1) or 1)
    # a scale of 0 would switch the adapter off, and a factor such as 1e999 reads as infinity
    if not 0 < factor <= _MOST_FACTOR:
        return None
    return MultipleOf(parameter="r", factor=int(factor) if factor.is_integer() else factor)


def parse_value(value: object, kind: ValueKind, *, at: tuple[str | int, ...]) -> Value | MultipleOf | Refusal:
    """Return the value as the kind wants it, or why it is refused."""
    if kind.is_rank_multiple_allowed and (multiple := _parse_multiple(value)) is not None:
        return multiple
    hint = quoted_number(value) or unbounded_number(value, example=kind.example) or f"Write for example {kind.example}."
    refusal = Refusal(found=repr(value), allowed=kind.allowed, hint=hint, at=at)
    # YAML reads 1e2 as a float, but its author meant a whole number
    if kind.is_integer:
        value = as_whole(value)
    if kind.field.pattern:
        value = as_word(value)
    if not isinstance(value, bool | int | float | str) or not kind.field.accepts(value):
        return refusal
    # 1 and 1.0 are the same rate: how it was written must not make two configurations
    return float(value) if kind.is_number and not kind.is_integer else value


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
    # repr, so that reading it back gives the same float
    return f"{multiple.factor!r}{multiple.parameter}" if multiple.factor != 1 else multiple.parameter
