"""The bodies of Cohort's own API."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from cohort.service.schema import Body

__all__ = ["PlanTask", "SubmitTask", "TrialChange"]

_Key = Annotated[str, Field(min_length=1, max_length=64)]
_Value = Annotated[str, Field(max_length=512)]


class PlanTask(Body):
    """A task as its file has it, with ids of uploaded files in ``dataset``, and a base model of the server."""

    task: dict[str, Any]


class SubmitTask(PlanTask):
    """POST /v1/cohort/tasks."""

    suffix: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    metadata: dict[_Key, _Value] | None = Field(default=None, max_length=16)
    # the same key again is the same task
    idempotency_key: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class TrialChange(BaseModel):
    """What a clone or a new trial is trained with; nothing for stop, resume and keep."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    values: dict[str, Any] = Field(default_factory=dict)
    warm_start: bool = False
