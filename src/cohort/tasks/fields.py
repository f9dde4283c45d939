"""What all sections of a task file are built from: their base, their fields, and how a validator says no."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, NoReturn

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    create_model,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from cohort.core.errors import Problem
from cohort.core.input_values.nearest_value import keys_text, nearest_word
from cohort.core.registry import Entries
from cohort.core.setting_fields import Refusal, SettingField, setting_fields

__all__ = [
    "REFUSAL_TYPE",
    "Registered",
    "SchemaOnDemand",
    "Section",
    "Whole",
    "as_whole",
    "as_word",
    "chosen",
    "refusal_of",
    "refusals_of",
    "refuse",
    "refuse_unknown",
    "require_known",
    "section_with",
    "setting",
    "setting_of",
]

REFUSAL_TYPE = "cohort_refusal"


def setting(default: Any = ..., *, allowed: str, description: str, **constraints: Any) -> Any:
    """Return a pydantic field whose error messages say ``allowed``."""
    return Field(default, description=description, json_schema_extra={"allowed": allowed}, **constraints)


def as_whole(value: object) -> object:
    """Return the whole number that a float such as 1e3 stands for; any other value as it is."""
    # YAML reads 1e3 as a float; 1e30 is no count, and is named as it was written
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


def as_word(value: object) -> object:
    """Return the word that YAML reads a switch from; any other value as it is."""
    return str(value).lower() if isinstance(value, bool) else value


Whole = Annotated[int, BeforeValidator(as_whole)]


@dataclass(frozen=True)
class Registered:
    """Marks a text as the name of a registered choice; names of installed packages are looked up when it is used."""

    key: str
    registry: Entries[Any]

    def _known(self, name: str) -> str:
        require_known(name, self.registry.names(), key=self.key)
        return name

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "enum": list(self.registry.names())}


@dataclass(frozen=True)
class SchemaOnDemand:
    """The JSON schema of a value, made when it is asked for: then installed packages may be looked up."""

    make: Callable[[], dict[str, Any]]

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return self.make()


def chosen(registry: Entries[Any], *, description: str) -> Any:
    # Cohort's own names only: this is called while Cohort is imported, when no other package may be searched for.
    allowed = " | ".join(entry.name for entry in registry.built_in())
    return setting(registry.default, allowed=allowed, description=description)


class Section(BaseModel):
    """What all sections share: unknown keys are errors, types are not guessed, nothing changes a value."""

    # strict: "8" for 8 would hide that a template or a shell has quoted a number. Frozen: a run records its task.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True, allow_inf_nan=False)


def setting_of(field: SettingField, *, description: str | None = None) -> tuple[Any, Any]:
    """Return the pydantic field of a setting of the layers: type and default, bounds and words."""
    kind: Any = Literal[field.options] if field.options else field.kind
    if field.check is not None:
        kind = Annotated[kind, BeforeValidator(_refusing(field))]
    if field.pattern:
        # YAML reads `true` as a switch where PEFT has it among its words
        kind = Annotated[kind, BeforeValidator(as_word)]
    if field.kind is int:
        # the last validator runs first: the check sees the whole number
        kind = Annotated[kind, BeforeValidator(as_whole)]
    if field.default is None:
        kind = kind | None
    default: Any = field.default() if callable(field.default) else field.default
    bounds: dict[str, Any] = dict(field.bounds)
    if field.pattern:
        bounds["pattern"] = f"^({field.pattern})$"
    return kind, setting(default, allowed=field.allowed, description=description or field.description, **bounds)


def section_with(settings: type, **first: tuple[Any, Any]) -> type[Section]:
    """Return the base of a section with the keys of a settings dataclass, after those of the section's own."""
    fields: dict[str, Any] = {name: setting_of(field) for name, field in setting_fields(settings).items()}
    return create_model(f"{settings.__name__}Base", __base__=Section, **{**first, **fields})


def _refusing(field: SettingField) -> Any:
    def check(value: object) -> object:
        if refusals := field.refusals(value):
            refuse(*refusals)
        return value

    return check


def refuse(*refusals: Refusal) -> NoReturn:
    """Raise what pydantic collects.

    Raises:
        PydanticCustomError: always; its context holds the refusals.
    """
    raise PydanticCustomError(REFUSAL_TYPE, "refused", {"refusals": refusals})


def require_known(value: object, names: Sequence[str], *, key: str) -> None:
    """Refuse ``value`` as the value of ``key`` unless it is one of ``names``."""
    if value not in names:
        near = nearest_word(value, names)
        hint = f"Did you mean {key}: {near}?" if near else "Choose one of these."
        refuse(Refusal(found=repr(value), allowed=" | ".join(names), hint=hint))


def refuse_unknown(value: Mapping[Any, Any], *, known: Sequence[str], section: str) -> None:
    """Refuse the keys of a section that are not among ``known``; for keys that pydantic's own answer does not know."""
    refusals = []
    for key in (str(key) for key in value if key not in known):
        near = get_close_matches(key.lower(), known, n=1)
        hint = f"Did you mean {section}.{near[0]}? Rename it." if near else "Remove it."
        allowed = f"the keys {keys_text(key, known)}"
        refusals.append(Refusal(found=f"the unknown key {key!r}", allowed=allowed, hint=hint, at=(key,)))
    if refusals:
        refuse(*refusals)


def refusal_of(problem: Problem) -> Refusal:
    """Return a problem of a section's settings, whose place is SECTION.KEY, as one below the section."""
    return Refusal(found=problem.found, allowed=problem.allowed, hint=problem.hint, at=problem.where.key[1:])


def refusals_of(context: Mapping[str, Any] | None) -> tuple[Refusal, ...]:
    """Return what :func:`refuse` put into an error's context."""
    return tuple((context or {}).get("refusals", ()))
