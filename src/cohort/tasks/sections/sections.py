"""The sections of a task file about training and search. Names are those of TRL, PEFT and Optuna."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema, model_validator

from cohort.core.setting_fields import MOST_NUMBER, Refusal, count_words, number_words, setting_fields
from cohort.tasks.earlier_results import parse_earlier_results, plain_earlier_results
from cohort.tasks.fields import Registered, SchemaOnDemand, Section, Whole, chosen, refuse, section_with, setting
from cohort.tasks.hyperparameters import LORA_ALPHA, SEARCHABLE, LoraKeys, TrainingKeys, multiple_to_plain, parse_alpha
from cohort.tasks.module_choice import module_choice_fields
from cohort.tasks.search_space import num_points, parameter_to_plain, parse_constraints, parse_space
from cohort.tasks.sections.block_section import BdLoraSection
from cohort.tasks.sections.schedule_options_section import (
    ScheduleSection,
    parse_schedule_section,
    plain_schedule_section,
)
from cohort.training.optimizers.declaration import OPTIMIZER_DECLARATIONS
from cohort.training.schedules import ScheduleOptions
from cohort.tuning.parameters import MultipleOf, Parameter
from cohort.tuning.samplers import SAMPLERS, EarlierResult, sampler_kind

__all__ = ["LoraSection", "SearchSection", "TrainingSection"]

# a larger search is a typing error: a grid would list millions of trials before one begins
GRID_LIMIT = 10_000


_MODULES_ALLOWED = "all-linear, or a list of module names"


def _target_modules(value: object) -> object:
    if isinstance(value, str) and value.strip():
        return value
    # an empty list is one of target_parameters alone, which the model's names are needed to tell
    if isinstance(value, list | tuple) and all(isinstance(name, str) and name.strip() for name in value):
        return tuple(value)
    hint = "Write all-linear, or for example [q_proj, v_proj]."
    refuse(Refusal(found=repr(value), allowed=_MODULES_ALLOWED, hint=hint))


def _plain_alpha(value: float | MultipleOf) -> float | str:
    return multiple_to_plain(value) if isinstance(value, MultipleOf) else value


if TYPE_CHECKING:
    # a type checker cannot see into classes made at run time; it sees the settings they are made from
    _LoraKeys = LoraKeys
    _TrainingKeys = TrainingKeys
else:
    _TARGETS = Annotated[
        str | tuple[str, ...],
        BeforeValidator(_target_modules),
        PlainSerializer(lambda names: names if isinstance(names, str) else list(names)),
    ]
    _TARGET_MODULES = setting(
        "all-linear", allowed=_MODULES_ALLOWED, description="the linear layers that get an adapter"
    )
    _LoraKeys = section_with(LoraKeys, target_modules=(_TARGETS, _TARGET_MODULES), **module_choice_fields())
    _TrainingKeys = section_with(TrainingKeys)


class LoraSection(_LoraKeys):
    """The adapters, with PEFT's names and meanings; values of ``search.space`` take their place."""

    if TYPE_CHECKING:
        target_modules: str | tuple[str, ...]
        exclude_modules: str | tuple[str, ...] | None
        layers_to_transform: tuple[int, ...] | None
        layers_pattern: tuple[str, ...] | None
        target_parameters: tuple[str, ...]
        rank_pattern: dict[str, int]
        alpha_pattern: dict[str, float]
        modules_to_save: tuple[str, ...]
        model_fields_set: set[str]
    lora_alpha: Annotated[
        float | MultipleOf,
        BeforeValidator(parse_alpha),
        PlainSerializer(_plain_alpha),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_NUMBER},
                    {"type": "string", "pattern": "r$"},
                ]
            }
        ),
    ] = setting(LORA_ALPHA.default, allowed=LORA_ALPHA.allowed, description=LORA_ALPHA.description)
    use_bdlora: BdLoraSection | None = setting(
        None,
        allowed="null, or a section with nblocks",
        description="block-diagonal factors (BD-LoRA), which tensor parallel servers divide without an exchange",
    )

    adapter_name_or_path: str | None = setting(
        None,
        allowed="the directory of a LoRA adapter, or null for drawn weights",
        description="adapter in PEFT's format whose weights every trial begins with",
    )

    @model_validator(mode="after")
    def _adapts_something(self) -> LoraSection:
        if not self.target_modules and not self.target_parameters:
            hint = "Write all-linear, or for example [q_proj, v_proj]."
            refuse(Refusal(found="[]", allowed=_MODULES_ALLOWED, hint=hint, at=("target_modules",)))
        return self


class TrainingSection(_TrainingKeys):
    """How a trial is trained; values of ``search.space`` take their place. A new key is a field of ``TrainingKeys``."""

    if TYPE_CHECKING:
        model_fields_set: set[str]
    optim: Annotated[str, Registered("optim", OPTIMIZER_DECLARATIONS)] = chosen(
        OPTIMIZER_DECLARATIONS, description=setting_fields(TrainingKeys)["optim"].description
    )
    lr_scheduler_kwargs: Annotated[
        ScheduleSection, BeforeValidator(parse_schedule_section), PlainSerializer(plain_schedule_section)
    ] = setting(
        ScheduleSection(),
        allowed="a section",
        description="what a schedule needs next to its name, for the trials whose schedule reads it",
    )

    def schedule_options(self) -> ScheduleOptions:
        return self.lr_scheduler_kwargs.options()


def _plain_space(space: dict[str, Parameter]) -> dict[str, Any]:
    return {name: parameter_to_plain(parameter) for name, parameter in space.items()}


def _object(properties: Mapping[str, Any], **rest: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties, **rest}


_RANGE: dict[str, Any] = {key: {} for key in ("min", "max", "log", "step", "num")}


def _space_schema() -> dict[str, Any]:
    return _object(
        {
            name: {
                "anyOf": [
                    {"type": "array", "minItems": 1},
                    _object(_RANGE, required=["min", "max"]),
                    _object({"values": {}, **_RANGE, "when": {}}, required=["when"]),
                    {"type": ["number", "string", "boolean"]},
                ],
                "description": f"a list, a range or one value; each {kind.allowed}",
            }
            for name, kind in SEARCHABLE.items()
        }
    )


class SearchSection(Section):
    """Which configurations are tried."""

    sampler: Annotated[str, Registered("sampler", SAMPLERS)] = chosen(
        SAMPLERS, description="what proposes the trials; grid takes all combinations"
    )
    trials: Whole = setting(
        60,
        ge=1,
        le=GRID_LIMIT,
        allowed=count_words(most=GRID_LIMIT),
        description="trials of random and tpe; grid takes all",
    )
    space: Annotated[
        dict[str, Parameter],
        BeforeValidator(parse_space),
        PlainSerializer(_plain_space),
        SchemaOnDemand(_space_schema),
    ] = setting(
        {},
        allowed=f"a mapping with keys among {', '.join(SEARCHABLE.built_in)}",
        description="a key overrides its namesake",
    )
    constraints: Annotated[
        tuple[str, ...],
        BeforeValidator(parse_constraints),
        PlainSerializer(list),
        WithJsonSchema({"type": "array", "items": {"type": "string"}}),
    ] = setting(
        (), allowed='a list of texts such as "lora_alpha >= r"', description="what every configuration has to meet"
    )
    first_trials: Whole | None = setting(
        None,
        ge=1,
        le=GRID_LIMIT,
        allowed=count_words(most=GRID_LIMIT),
        description="random, tpe: trials at the start, then one for each that ends (null: all; a third)",
    )
    max_gpu_hours: float | None = setting(
        None,
        gt=0,
        le=MOST_NUMBER,
        allowed=number_words(minimum=None),
        description="random, tpe: hours on the device after which no more trials are proposed",
    )

    earlier_results: Annotated[
        tuple[EarlierResult, ...],
        BeforeValidator(parse_earlier_results),
        PlainSerializer(plain_earlier_results),
        WithJsonSchema({"type": "array", "items": {"type": "object", "required": ["value"]}}),
    ] = setting(
        (),
        allowed="a list of mappings such as {learning_rate: 2e-4, r: 16, value: 1.9}",
        description="tpe: results of earlier searches that it learns from; value is the task's metric",
    )

    @model_validator(mode="after")
    def _earlier_results_are_read(self) -> SearchSection:
        if self.earlier_results and not sampler_kind(self.sampler).learns:
            refuse(
                Refusal(
                    found=f"earlier_results with sampler: {self.sampler}, which does not learn from results",
                    allowed="sampler: tpe",
                    hint="Remove earlier_results, or choose another sampler.",
                    at=("earlier_results",),
                )
            )
        return self

    @model_validator(mode="after")
    def _grid_can_be_counted(self) -> SearchSection:
        # other samplers draw as many as `trials` says, however large the space is
        if not sampler_kind(self.sampler).takes_whole_space:
            return self
        unused = [
            Refusal(
                found=f"{name} with sampler: {self.sampler}, which takes all combinations at once",
                allowed="sampler: random or tpe",
                hint=f"Remove {name}, or choose another sampler.",
                at=(name,),
            )
            for name in ("first_trials", "max_gpu_hours")
            if getattr(self, name) is not None
        ]
        if unused:
            refuse(*unused)
        counts = {name: num_points(parameter) for name, parameter in self.space.items()}
        endless = [
            Refusal(
                found=f"a range of {name} without step or num",
                allowed=f"with sampler: {self.sampler}, a list, or a range with num (values) or step (distance)",
                hint=f"Add num: 5, write a list such as {SEARCHABLE[name].example}, or sampler: tpe.",
                at=("space", name),
            )
            for name, count in counts.items()
            if count is None
        ]
        if endless:
            refuse(*endless)
        # counted, not listed: a slip of a zero would fill the memory with configurations
        num_trials = math.prod(count for count in counts.values() if count is not None)
        if num_trials > GRID_LIMIT:
            refuse(
                Refusal(
                    found=f"a grid of {num_trials:,} trials",
                    allowed=f"at most {GRID_LIMIT:,} trials",
                    hint="Write shorter lists, or sampler: random with trials.",
                    at=("space",),
                )
            )
        return self
