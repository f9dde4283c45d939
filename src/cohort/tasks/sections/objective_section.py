"""The ``objective`` section of a task file: ``objective: dpo``, or its type with the values that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, create_model, model_validator

from cohort.core.input_values.nearest_value import nearest_word
from cohort.core.setting_fields import Refusal, SettingField
from cohort.data.settings import RowReading
from cohort.metrics import function_path
from cohort.tasks.fields import Section, refuse, refuse_unknown, require_known, setting, setting_of
from cohort.tasks.hyperparameters import SEARCHABLE, SECTION_OF
from cohort.training.objectives.declaration import (
    DEFAULT_OBJECTIVE_NAME,
    OBJECTIVE_DECLARATIONS,
    ObjectiveDeclaration,
    searched_of,
)

__all__ = [
    "ObjectiveSection",
    "declared_objective",
    "is_objective_value",
    "objective_schema",
    "objective_value_refusals",
    "own_value_refusals",
    "parse_objective",
    "plain_objective",
    "unmet_conditions",
    "unread_key",
]

_FUNCTION = "function"
# those of Cohort alone: this is made while Cohort is imported, when no other package may be searched for
_OWN = OBJECTIVE_DECLARATIONS.built_in()
_FIELDS: Mapping[str, SettingField] = {name: value.setting for name, value in searched_of(_OWN).items()}


def declared_objective(name: str) -> ObjectiveDeclaration:
    """Return what the objective ``name`` of a valid task declares.

    Raises:
        InputError: an installed package offers it, and it cannot be used.
    """
    found = OBJECTIVE_DECLARATIONS.find(name)
    assert found is not None, f"a task's objective is checked when it is read, and {name} is none"
    return found


def _optional(name: str, field: SettingField) -> tuple[Any, Any]:
    bounds: dict[str, Any] = dict(field.bounds)
    kind: Any = field.kind
    if field.options:
        # here, and not with the other rules of the section: those wait until every value is right in itself
        kind = Annotated[kind, AfterValidator(_one_of(name, field.options))]
    # None and not the default: a key that was written may be refused as unread, one that was not may not
    own = setting(None, allowed=field.allowed, description=field.description, **bounds)
    own.json_schema_extra["example"] = f"{name}: {field.default}"
    return kind | None, own


def _one_of(name: str, options: Sequence[str]) -> Callable[[str], str]:
    def check(value: str) -> str:
        require_known(value, options, key=name)
        return value

    return check


if TYPE_CHECKING:
    # the keys are those that objectives declare, made into fields when the module is loaded
    class _ObjectiveKeys(Section):
        def __getattr__(self, name: str) -> Any: ...

else:
    _ObjectiveKeys = create_model(
        "_ObjectiveKeys", __base__=Section, **{name: _optional(name, field) for name, field in _FIELDS.items()}
    )


class ObjectiveSection(_ObjectiveKeys):
    """What is minimised. A value that is None was not written: :attr:`values` has what it is then."""

    type: str = setting(
        DEFAULT_OBJECTIVE_NAME,
        allowed=" | ".join(entry.name for entry in _OWN),
        description="; ".join(f"{entry.name}: {entry.summary}" for entry in _OWN),
    )
    reference_adapter: str | None = setting(
        None,
        allowed="the directory of a LoRA adapter, or null for the base model",
        description=f"{', '.join(entry.name for entry in _OWN if entry.needs_reference)}: adapter that trials are held "
        "to (null: the base model)",
    )

    function: str | None = setting(
        None,
        allowed="module:function or path/file.py:function",
        description="function: the loss of each token, a function of the row's log-probabilities and tokens",
    )

    @property
    def declared(self) -> ObjectiveDeclaration:
        """What the objective declares."""
        return declared_objective(self.type)

    @property
    def values(self) -> dict[str, Any]:
        """What the objective reads, by key, where ``search.space`` does not set it."""
        # looked up once: each look-up asks the installed packages as well
        declared = self.declared
        written = {name: getattr(self, name) for name in declared.values}
        return {name: declared.default(name) if value is None else value for name, value in written.items()}

    @property
    def reads(self) -> RowReading:
        """What it reads of a row."""
        return self.declared.reads

    @model_validator(mode="after")
    def _keys_are_read(self) -> ObjectiveSection:
        require_known(self.type, OBJECTIVE_DECLARATIONS.names(), key="type")
        own = self.declared
        keys = [
            name for name in type(self).model_fields if name not in ObjectiveSection.model_fields or name in _FIELDS
        ]
        refusals = [
            unread_key(name, objective=self.type)
            for name in keys
            if getattr(self, name) is not None and name not in own.values
        ]
        if self.reference_adapter is not None and not own.needs_reference:
            readers = [entry.name for entry in OBJECTIVE_DECLARATIONS.usable() if entry.needs_reference]
            refusals.append(
                Refusal(
                    found=f"reference_adapter with {self.type}, which compares with no reference",
                    allowed=f"reference_adapter with {' or '.join(readers)}",
                    hint="Remove the key.",
                    at=("reference_adapter",),
                )
            )
        refusals += _function_refusals(self.type, self.function)
        # one reason is enough: of a key that is not read no value is right
        if not refusals:
            for name in own.values:
                if (value := getattr(self, name)) is not None:
                    refusals += own_value_refusals(name, [value], objective=self.type, at=(name,))
        if not refusals:
            values = {name: [value] for name, value in self.values.items()}
            for name in own.values:
                if self.values[name] != own.default(name):
                    refusals += unmet_conditions(name, objective=self.type, values=values, at=(name,))
        if refusals:
            refuse(*refusals)
        return self


def section_of(entry: ObjectiveDeclaration) -> type[ObjectiveSection]:
    """Return the section's class for an objective of another package: with its values, if Cohort's own lack them."""
    if taken := [name for name in entry.values if name in SEARCHABLE.own]:
        refuse(
            Refusal(
                found=f"{entry.name}, whose value {taken[0]} is a key of {SECTION_OF[taken[0]]}",
                allowed="an objective whose values have names of their own",
                hint="Update the package that offers it.",
            )
        )
    merged = {name: value.setting for name, value in searched_of((*_OWN, entry)).items()}
    fields: dict[str, Any] = {
        name: _optional(name, field)
        for name, field in merged.items()
        if name in _FIELDS and field.options != _FIELDS[name].options
    }
    for name in (name for name in entry.values if name not in _FIELDS):
        # messages look keys up in ObjectiveSection, which lacks another package's: so its refusals bring their words
        kind, _ = setting_of(replace(merged[name], check=merged[name].refusals))
        fields[name] = kind | None, _optional(name, merged[name])[1]
    return create_model("ObjectiveSection", __base__=ObjectiveSection, **fields) if fields else ObjectiveSection


def _function_refusals(objective: str, function: str | None) -> list[Refusal]:
    """Return why ``function`` and the type do not go together."""
    if objective == _FUNCTION:
        if function is not None and function_path(function) is not None:
            return []
        found = "function without the key function" if function is None else repr(function)
        hint = "Write objective: my_losses:focal, a function in my_losses.py."
        return [Refusal(found=found, allowed="module:function or path/file.py:function", hint=hint, at=("function",))]
    if function is None:
        return []
    hint = f"Write objective: {function}, or remove the key."
    return [Refusal(found=f"function with {objective}", allowed="with type: function", hint=hint, at=("function",))]


def unread_key(name: str, *, objective: str) -> Refusal:
    """Return the refusal of a key that an objective does not read."""
    entries = [entry for entry in OBJECTIVE_DECLARATIONS.usable() if name in entry.values]
    readers, first = [entry.name for entry in entries], next((entry for entry in entries if entry.first_choice), None)
    return Refusal(
        found=f"{name} with {objective}, which does not read it",
        allowed=f"{name} with {', '.join(readers)}",
        hint=f"Remove {name}, or write objective: {{type: {first.name if first else readers[0]}}}.",
        at=(name,),
    )


def own_value_refusals(name: str, values: Sequence[Any], *, objective: str, at: tuple[str, ...]) -> list[Refusal]:
    """Return the values that an objective does not take; a key of several objectives has the bounds of all of them."""
    setting = declared_objective(objective).values[name].setting
    return [
        Refusal(
            found=repr(value),
            allowed=f"{setting.allowed} for {objective}",
            hint=f"Write {nearest_word(value, setting.options) or setting.options[0]}."
            if setting.options
            else f"Write for example {name}: {setting.default}.",
            at=at,
        )
        for value in values
        if not setting.accepts(value)
    ]


def unmet_conditions(
    name: str, *, objective: str, values: Mapping[str, Sequence[Any]], at: tuple[str, ...]
) -> Iterator[Refusal]:
    """Yield why a value is not read with some of the ``values`` that other keys may have."""
    for other, allowed in declared_objective(objective).values[name].only_with.items():
        for value in values.get(other, ()):
            if value not in allowed:
                yield Refusal(
                    found=f"{name} with {other}: {value}, which does not read it",
                    allowed=f"{name} with {' or '.join(allowed)}",
                    hint=f"Remove {name}, or search it only there: "
                    f"{{values: {declared_objective(objective).values[name].example}, "
                    f"when: {{{other}: {allowed[0]}}}}}.",
                    at=at,
                )


def is_objective_value(name: str) -> bool:
    """Return whether ``name`` is a value of some objective, of Cohort's or of an installed package's."""
    return name in _FIELDS or any(name in entry.values for entry in OBJECTIVE_DECLARATIONS.usable())


def objective_value_refusals(objective: str, name: str, value: Any) -> list[Refusal]:
    """Return why one value of a hyperparameter cannot be an objective's; nothing for those of other sections."""
    if not is_objective_value(name):
        return []
    if name not in declared_objective(objective).values:
        return [unread_key(name, objective=objective)]
    # what is wrong for every objective is refused with the words of the hyperparameter
    is_usable = SEARCHABLE[name].field.accepts(value)
    return own_value_refusals(name, [value], objective=objective, at=(name,)) if is_usable else []


def parse_objective(value: object) -> object:
    """Return the section that the key's value means; a mapping of one of Cohort's own objectives as it is.

    Raises:
        pydantic.ValidationError: values of another package's objective that are not accepted.
        InputError: the package's objective cannot be used.
    """
    if isinstance(value, ObjectiveSection):
        return value
    if isinstance(value, Mapping):
        # an unknown or mistyped objective gets the plain section, whose validator names those there are
        name = value.get("type")
        entry = OBJECTIVE_DECLARATIONS.find(name) if isinstance(name, str) else None
        if entry is None or entry in _OWN:
            return value
        section = section_of(entry)
        refuse_unknown(value, known=list(section.model_fields), section="objective")
        return section.model_validate(value)
    if isinstance(value, str) and function_path(value) is not None:
        return ObjectiveSection(type=_FUNCTION, function=value)
    for entry in _OWN:
        losses = entry.values["loss_type"].setting.options if "loss_type" in entry.values else ()
        if value in losses and value not in OBJECTIVE_DECLARATIONS.names():
            refuse(
                Refusal(
                    found=f"{value!r}, which is a loss of {entry.name}",
                    allowed=" | ".join(OBJECTIVE_DECLARATIONS.names()),
                    hint=f"Write objective: {{type: {entry.name}, loss_type: {value}}}.",
                )
            )
    require_known(value, OBJECTIVE_DECLARATIONS.names(), key="objective")
    return section_of(declared_objective(str(value)))(type=str(value))


def plain_objective(section: ObjectiveSection) -> str | dict[str, Any]:
    """Return the section as a task file has it: ``sft``, or the type with every value that it reads."""
    if section.type == DEFAULT_OBJECTIVE_NAME:
        return section.type
    if section.type == _FUNCTION:
        return {"type": section.type, "function": section.function}
    adapter = {"reference_adapter": section.reference_adapter} if section.declared.needs_reference else {}
    return {"type": section.type, **section.values, **adapter}


def objective_schema() -> dict[str, Any]:
    """Return the JSON schema of the key, with what installed packages offer."""
    names = list(OBJECTIVE_DECLARATIONS.names())
    kind = ObjectiveSection.model_fields["type"]
    properties: dict[str, Any] = {"type": {"enum": names, "description": kind.description}}
    for name, value in searched_of(OBJECTIVE_DECLARATIONS.usable()).items():
        properties[name] = _value_schema(value.setting)
    for name in ("reference_adapter", "function"):
        description = ObjectiveSection.model_fields[name].description
        properties[name] = {"type": ["string", "null"], "description": description}
    # pydantic would describe the section alone, and the key takes a bare name as well
    section = {"type": "object", "additionalProperties": False, "required": ["type"], "properties": properties}
    function = {"type": "string", "pattern": ":", "description": "module:function, a loss of your own"}
    return {"anyOf": [{"enum": names}, function, section]}


def _value_schema(field: SettingField) -> dict[str, Any]:
    names = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
    kinds = {int: "integer", bool: "boolean"}
    bounds = {names[bound]: limit for bound, limit in field.bounds.items()}
    kind: dict[str, Any] = {"type": kinds.get(field.kind, "number"), **bounds}
    return {**({"enum": list(field.options)} if field.options else kind), "description": field.description}
