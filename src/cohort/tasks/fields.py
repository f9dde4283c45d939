"""What all sections of a task file are built from."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

__all__ = ["Section", "Whole", "setting"]


def setting(default: Any = ..., *, allowed: str, description: str, **constraints: Any) -> Any:
    """Return a pydantic field whose error messages say ``allowed``."""
    return Field(default, description=description, json_schema_extra={"allowed": allowed}, **constraints)


def _whole(value: object) -> object:
    """1e3 and 1000.0 are whole numbers as well."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


class Section(BaseModel):
    """What all sections share: unknown keys are errors, types are not guessed, nobody changes a value."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True, allow_inf_nan=False)
