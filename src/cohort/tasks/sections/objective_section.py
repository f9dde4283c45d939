"""The ``objective`` section of a task file: ``objective: dpo``, or its type with the values that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, model_validator

from cohort.core.nearest_word import nearest_word
from cohort.core.setting_fields import Refusal, SettingField, setting_fields
from cohort.data.settings import RowReading
from cohort.metrics import function_path
from cohort.tasks.fields import Section, refuse, require_known, setting
from cohort.tasks.sections.objective_keys import (
    LOSS_TYPES,
    OBJECTIVE_VALUES,
    READS,
    REFERENCE_OBJECTIVES,
    SMOOTHED,
    ObjectiveKeys,
)

__all__ = [
    "ObjectiveSection",
    "loss_type_refusals",
    "objective_schema",
    "objective_value_refusals",
    "parse_objective",
    "plain_objective",
    "smoothing_refusals",
    "unread_key",
]

_FIELDS: Mapping[str, SettingField] = setting_fields(ObjectiveKeys)
_NAMES = tuple(OBJECTIVE_VALUES)


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
    # the keys are those of a dataclass, made into fields when the module is loaded: a type checker cannot follow
    class _ObjectiveKeys(Section):
        def __getattr__(self, name: str) -> Any: ...

else:
    from pydantic import create_model

    _ObjectiveKeys = create_model(
        "_ObjectiveKeys", __base__=Section, **{name: _optional(name, field) for name, field in _FIELDS.items()}
    )


class ObjectiveSection(_ObjectiveKeys):
    """What is minimised. A value that is None was not written: :attr:`values` has what it is then."""

    type: str = setting("sft", allowed=" | ".join(_NAMES), description="what is minimised")
    reference_adapter: str | None = setting(
        None,
        allowed="the directory of a LoRA adapter, or null for the base model",
        description="dpo, kto: adapter that trials are held to (null: the base model)",
    )

    function: str | None = setting(
        None,
        allowed="module:function or path/file.py:function",
        description="function: the loss of each token, a function of the row's log-probabilities and tokens",
    )

    @property
    def values(self) -> dict[str, Any]:
        """What the objective reads, by key, where ``search.space`` does not set it."""
        written = {name: getattr(self, name) for name in OBJECTIVE_VALUES[self.type]}
        defaults = OBJECTIVE_VALUES[self.type]
        return {name: defaults[name] if value is None else value for name, value in written.items()}

    @property
    def reads(self) -> RowReading:
        """What it reads of a row."""
        return READS[self.type]

    @model_validator(mode="after")
    def _keys_are_read(self) -> ObjectiveSection:
        require_known(self.type, _NAMES, key="type")
        refusals = [
            unread_key(name, objective=self.type)
            for name in _FIELDS
            if getattr(self, name) is not None and name not in OBJECTIVE_VALUES[self.type]
        ]
        if self.reference_adapter is not None and self.type not in REFERENCE_OBJECTIVES:
            refusals.append(
                Refusal(
                    found=f"reference_adapter with {self.type}, which compares with no reference",
                    allowed=f"reference_adapter with {' or '.join(REFERENCE_OBJECTIVES)}",
                    hint="Remove the key.",
                    at=("reference_adapter",),
                )
            )
        refusals += _function_refusals(self.type, self.function)
        kinds = LOSS_TYPES.get(self.type, ())
        # one reason is enough: of a key that is not read no value is right
        if not refusals and self.loss_type is not None:
            refusals += loss_type_refusals([self.loss_type], objective=self.type, at=("loss_type",))
        if not refusals and kinds and (self.label_smoothing or 0) > 0:
            refusals += smoothing_refusals([self.values["loss_type"]], at=("label_smoothing",))
        if refusals:
            refuse(*refusals)
        return self


def _function_refusals(objective: str, function: str | None) -> list[Refusal]:
    """Return why ``function`` and the type do not go together."""
    if objective == "function":
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
    readers = [kind for kind, values in OBJECTIVE_VALUES.items() if name in values]
    return Refusal(
        found=f"{name} with {objective}, which does not read it",
        allowed=f"{name} with {', '.join(readers)}",
        hint=f"Remove {name}, or write objective: {{type: {readers[0]}}}.",
        at=(name,),
    )


def loss_type_refusals(kinds: list[Any], *, objective: str, at: tuple[str, ...]) -> list[Refusal]:
    """Return the loss types that an objective does not have."""
    allowed = LOSS_TYPES[objective]
    return [
        Refusal(
            found=repr(kind),
            allowed=f"{' | '.join(allowed)} for {objective}",
            hint=f"Write {nearest_word(kind, allowed) or allowed[0]}.",
            at=at,
        )
        for kind in kinds
        if kind not in allowed
    ]


def smoothing_refusals(kinds: list[Any], *, at: tuple[str, ...]) -> list[Refusal]:
    """Return why ``label_smoothing`` cannot be combined with loss types that do not read it."""
    return [
        Refusal(
            found=f"label_smoothing with loss_type: {kind}, which does not read it",
            allowed=f"label_smoothing with {' or '.join(SMOOTHED)}",
            hint="Remove label_smoothing, or search it only there: {values: [0.0, 0.1], when: {loss_type: sigmoid}}.",
            at=at,
        )
        for kind in kinds
        if kind not in SMOOTHED
    ]


def objective_value_refusals(objective: str, name: str, value: Any) -> list[Refusal]:
    """Return why one value of a hyperparameter cannot be an objective's; nothing for those of other sections."""
    if name not in _FIELDS:
        return []
    if name not in OBJECTIVE_VALUES[objective]:
        return [unread_key(name, objective=objective)]
    return loss_type_refusals([value], objective=objective, at=(name,)) if name == "loss_type" else []


def parse_objective(value: object) -> object:
    """Return the section that ``objective: NAME`` means; anything else as it is."""
    if isinstance(value, Mapping | ObjectiveSection):
        return value
    if isinstance(value, str) and function_path(value) is not None:
        return ObjectiveSection(type="function", function=value)
    require_known(value, _NAMES, key="objective")
    return ObjectiveSection(type=str(value))


def plain_objective(section: ObjectiveSection) -> str | dict[str, Any]:
    """Return the section as a task file has it: ``sft``, or the type with every value that it reads."""
    if section.type == "sft":
        return section.type
    if section.type == "function":
        return {"type": section.type, "function": section.function}
    adapter = {"reference_adapter": section.reference_adapter} if section.type in REFERENCE_OBJECTIVES else {}
    return {"type": section.type, **section.values, **adapter}


def objective_schema() -> dict[str, Any]:
    """Return the JSON schema of the key."""
    properties: dict[str, Any] = {"type": {"enum": list(_NAMES), "description": "what is minimised"}}
    for name, field in _FIELDS.items():
        names = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
        bounds = {names[bound]: limit for bound, limit in field.bounds.items()}
        kind: dict[str, Any] = {"enum": list(field.options)} if field.options else {"type": "number", **bounds}
        properties[name] = {**kind, "description": field.description}
    properties["reference_adapter"] = {
        "type": ["string", "null"],
        "description": ObjectiveSection.model_fields["reference_adapter"].description,
    }
    properties["function"] = {
        "type": ["string", "null"],
        "description": ObjectiveSection.model_fields["function"].description,
    }
    # pydantic would describe the section alone, and the key takes a bare name as well
    section = {"type": "object", "additionalProperties": False, "required": ["type"], "properties": properties}
    function = {"type": "string", "pattern": ":", "description": "module:function, a loss of your own"}
    return {"anyOf": [{"enum": list(_NAMES)}, function, section]}
