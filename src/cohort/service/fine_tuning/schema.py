"""The bodies of OpenAI's fine-tuning API, with Cohort's further key ``cohort``."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from cohort.service.schema import Body

__all__ = [
    "AUTO",
    "CohortOptions",
    "CreateJob",
    "DpoMethod",
    "Hyperparameters",
    "SupervisedMethod",
]

AUTO: Final = "auto"

_Auto = Literal["auto"]
_Epochs = Annotated[int, Field(ge=1, le=1000)]
_Batch = Annotated[int, Field(ge=1, le=4096)]
_Positive = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
_Id = Annotated[str, Field(min_length=1, max_length=200)]
_Key = Annotated[str, Field(min_length=1, max_length=64)]
_Value = Annotated[str, Field(max_length=512)]
_MOST_METADATA = 16


class Hyperparameters(Body):
    """``auto`` is searched; a number is trained with."""

    n_epochs: _Auto | _Epochs = AUTO
    batch_size: _Auto | _Batch = AUTO
    learning_rate_multiplier: _Auto | _Positive = AUTO

    @field_validator("n_epochs", "batch_size", "learning_rate_multiplier", mode="before")
    @classmethod
    def _nothing_is_auto(cls, value: object) -> object:
        return AUTO if value is None else value


class DpoHyperparameters(Hyperparameters):
    """Those of preference tuning."""

    beta: _Auto | Annotated[float, Field(gt=0, le=2, allow_inf_nan=False)] = AUTO

    @field_validator("beta", mode="before")
    @classmethod
    def _nothing_is_auto_either(cls, value: object) -> object:
        return AUTO if value is None else value


class SupervisedMethod(Body):
    """Answers to learn."""

    hyperparameters: Hyperparameters = Hyperparameters()


class DpoMethod(Body):
    """Pairs of answers to tell apart."""

    hyperparameters: DpoHyperparameters = DpoHyperparameters()


class Method(Body):
    """How to train, with the section of that name."""

    type: Literal["supervised", "dpo"]
    supervised: SupervisedMethod | None = None
    dpo: DpoMethod | None = None

    @model_validator(mode="after")
    def _has_its_section_alone(self) -> Self:
        other = "dpo" if self.type == "supervised" else "supervised"
        if getattr(self, other) is not None:
            raise ValueError(f"method.{other} with type {self.type}: write method.{self.type}")
        return self


class CohortOptions(BaseModel):
    """What Cohort can do beyond OpenAI's API: sections of a task file, and a budget.

    Attributes:
        search_space: ``search.space`` of a task file, which replaces the space of ``auto`` for the keys that it has.
        sampler, trials: ``search.sampler`` and ``search.trials``.
        metric: What the best trial is best at.
        evaluation, lora, training, early_exit, dataset: Those sections.
        time_budget_seconds: Seconds of training after which the trials that still run are stopped.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    search_space: dict[str, Any] = Field(default_factory=dict)
    sampler: str | None = None
    trials: int | None = Field(default=None, ge=1, le=10_000)
    metric: str | None = None
    evaluation: dict[str, Any] = Field(default_factory=dict)
    lora: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)
    dataset: dict[str, Any] = Field(default_factory=dict)
    early_exit: dict[str, Any] | Literal["none"] | None = None
    time_budget_seconds: float | None = Field(default=None, gt=0, le=1e9, allow_inf_nan=False)


class CreateJob(Body):
    """POST /v1/fine_tuning/jobs."""

    model: _Id
    training_file: _Id
    validation_file: _Id | None = None
    suffix: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    metadata: dict[_Key, _Value] | None = Field(default=None, max_length=_MOST_METADATA)
    method: Method | None = None
    hyperparameters: Hyperparameters | None = None
    # the server's own keys of a tracker are no client's to use
    integrations: Annotated[list[Any], Field(max_length=0)] | None = None
    cohort: CohortOptions | None = None

    @field_validator("suffix")
    @classmethod
    def _suffix_is_a_name(cls, value: str | None) -> str | None:
        # it becomes a part of the model's name, which people type into URLs
        if value is not None and not all(
            letter.isascii() and (letter.isalnum() or letter in "-_.") for letter in value
        ):
            raise ValueError("letters, digits, '-', '_' and '.' alone")
        return value

    @model_validator(mode="after")
    def _says_each_thing_once(self) -> Self:
        if self.method is not None and self.hyperparameters is not None:
            raise ValueError("hyperparameters with method: write them as method.supervised.hyperparameters")
        if self.cohort is not None and self._written_options is not None:
            raise ValueError("cohort and metadata.cohort: write one of the two")
        self.options  # noqa: B018 - refuses options that are no JSON
        return self

    @property
    def _written_options(self) -> str | None:
        return (self.metadata or {}).get("cohort")

    @property
    def options(self) -> CohortOptions:
        """Cohort's options, from the key ``cohort`` or as JSON in ``metadata["cohort"]``."""
        if self._written_options is None:
            return self.cohort or CohortOptions()
        try:
            return CohortOptions.model_validate(json.loads(self._written_options))
        except ValueError as error:
            raise ValueError(f"metadata.cohort: {str(error).splitlines()[0]}") from None

    @property
    def method_type(self) -> Literal["supervised", "dpo"]:
        return "supervised" if self.method is None else self.method.type

    @property
    def asked(self) -> Hyperparameters:
        """The hyperparameters, wherever they were written."""
        if self.method is None:
            return self.hyperparameters or Hyperparameters()
        if self.method.type == "dpo":
            return (self.method.dpo or DpoMethod()).hyperparameters
        return (self.method.supervised or SupervisedMethod()).hyperparameters
