"""What all sections of a task file are built from."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from cohort.tasks.refusal import Refusal, refuse
from cohort.tuning.registry import Registry

__all__ = ["Registered", "Section", "Whole", "chosen", "setting"]


def setting(default: Any = ..., *, allowed: str, description: str, **constraints: Any) -> Any:
    """Return a pydantic field whose error messages say ``allowed``."""
    return Field(default, description=description, json_schema_extra={"allowed": allowed}, **constraints)


def _whole(value: object) -> object:
    """1e3 and 1000.0 are whole numbers as well."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


@dataclass(frozen=True)
class Registered:
    """Marks a text as the name of a registered choice; names of installed packages are looked up when it is used."""

    key: str
    registry: Registry[Any]

    def _known(self, name: str) -> str:
        names = self.registry.names()
        if name not in names:
            near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
            hint = f"Did you mean {self.key}: {near[0]}?" if near else "Choose one of these."
            refuse(Refusal(found=repr(name), allowed=" | ".join(names), hint=hint))
        return name

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "enum": list(self.registry.names())}


def chosen(registry: Registry[Any], *, description: str) -> Any:
    """Return a field for the name of a registered choice."""
    # Cohort's own names only: this is called while Cohort is imported, when no other package may be searched for.
    allowed = " | ".join(entry.name for entry in registry.built_in())
    return setting(registry.default, allowed=allowed, description=description)


class Section(BaseModel):
    """What all sections share: unknown keys are errors, types are not guessed, nobody changes a value."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True, allow_inf_nan=False)
