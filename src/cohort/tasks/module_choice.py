"""Keys of the ``lora`` section that tell modules apart, with PEFT's names and meanings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from cohort.adapters.modules_to_save.saved_modules import EMBEDDING, HEAD, SAVED_NAMES, SAVED_PATHS
from cohort.core.setting_fields import MOST_NUMBER, Refusal, count_words, number_words
from cohort.tasks.fields import refuse, setting
from cohort.tasks.hyperparameters import MOST_RANK

__all__ = ["MOST_LAYERS", "module_choice_fields", "modules_to_save_field"]

# a deeper model does not exist
MOST_LAYERS = 100_000

_NAMES = "a list of module names, or one regular expression for the whole path"


def _refuse_unless_expression(text: str, *, at: tuple[str | int, ...] = ()) -> None:
    # matched only once the model's linears are known: a slip is named before a model is looked for
    try:
        re.compile(text)
    except re.error as error:
        refuse(
            Refusal(
                found=f"{text!r}: {error}",
                allowed="a regular expression, such as model.layers.0.self_attn.q_proj or down_proj",
                hint="Correct it, or put a backslash before what should stand for itself.",
                at=at,
            )
        )


def _excluded(value: object) -> object:
    if value is None:
        return None
    if isinstance(value, str) and value.strip():
        _refuse_unless_expression(value)
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) and name.strip() for name in value):
        return tuple(value)
    refuse(Refusal(found=repr(value), allowed=_NAMES, hint="Write for example [down_proj], or remove the key."))


def _parameters(value: object) -> object:
    if value is None:
        return ()
    if isinstance(value, list | tuple) and all(isinstance(name, str) and name.strip() for name in value):
        return tuple(value)
    # PEFT takes no text here either
    hint = "Write for example [mlp.experts.gate_up_proj, mlp.experts.down_proj], or remove the key."
    refuse(Refusal(found=repr(value), allowed="a list of parameter names", hint=hint))


def _layers(value: object) -> object:
    if value is None:
        return None
    listed = value if isinstance(value, list | tuple) else [value]
    # true and false are whole numbers to Python
    if listed and all(
        isinstance(index, int) and not isinstance(index, bool) and 0 <= index < MOST_LAYERS for index in listed
    ):
        return tuple(listed)
    allowed = f"a layer's number, from 0 and below {MOST_LAYERS:,}, or a list of them"
    refuse(Refusal(found=repr(value), allowed=allowed, hint="Write for example [0, 1, 2], or remove the key."))


def _layers_pattern(value: object) -> object:
    if value is None:
        return None
    listed = value if isinstance(value, list | tuple) else [value]
    if listed and all(isinstance(name, str) and name.strip() for name in listed):
        for index, name in enumerate(listed):
            _refuse_unless_expression(name, at=(index,) if isinstance(value, list) else ())
        return tuple(listed)
    refuse(
        Refusal(found=repr(value), allowed="the name of the list of layers", hint="Write layers, or remove the key.")
    )


def _pattern(value: object, *, whole: bool, example: str) -> object:
    most = MOST_RANK if whole else MOST_NUMBER
    kind = count_words(most=MOST_RANK) if whole else number_words(minimum=None)
    if not isinstance(value, Mapping):
        allowed = f"a mapping from regular expressions to {kind}"
        refuse(Refusal(found=repr(value), allowed=allowed, hint=f"Write for example {example}, or remove the key."))
    found = {}
    for name, number in value.items():
        if not isinstance(name, str) or not name:
            refuse(Refusal(found=repr(name), allowed="a regular expression", hint=f"Write for example {example}."))
        _refuse_unless_expression(name, at=(name,))
        is_number = isinstance(number, int | float) and not isinstance(number, bool) and 0 < number <= most
        if not is_number or (whole and number != int(number)):
            refuse(Refusal(found=repr(number), allowed=kind, hint=f"Write for example {example}.", at=(name,)))
        # YAML may say 8.0, which is a whole number; 8.5 was refused above
        found[name] = int(number) if whole else float(number)
    return found


def _mapping_to(number: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"type": "object", "additionalProperties": number})


def _parameters_field() -> tuple[Any, Any]:
    kind = Annotated[
        tuple[str, ...],
        BeforeValidator(_parameters),
        PlainSerializer(list),
        WithJsonSchema({"type": "array", "items": {"type": "string"}}),
    ]
    return kind, setting(
        (),
        allowed="a list of parameter names",
        description="experts that get adapters, such as mlp.experts.down_proj",
    )


def module_choice_fields() -> dict[str, tuple[Any, Any]]:
    """Return the fields of the section, by key."""
    # a task is frozen, so values are tuples; files and records have lists
    excluded = Annotated[
        str | tuple[str, ...] | None,
        BeforeValidator(_excluded),
        PlainSerializer(lambda names: list(names) if isinstance(names, tuple) else names),
    ]
    layers = Annotated[
        tuple[int, ...] | None,
        BeforeValidator(_layers),
        PlainSerializer(lambda found: None if found is None else list(found)),
        WithJsonSchema(
            {
                "type": ["integer", "array", "null"],
                "items": {"type": "integer", "minimum": 0, "exclusiveMaximum": MOST_LAYERS},
            }
        ),
    ]
    layers_pattern = Annotated[
        tuple[str, ...] | None,
        BeforeValidator(_layers_pattern),
        PlainSerializer(lambda found: None if found is None else list(found)),
        WithJsonSchema({"type": ["string", "array", "null"], "items": {"type": "string"}}),
    ]
    ranks = Annotated[
        dict[str, int],
        BeforeValidator(lambda value: _pattern(value, whole=True, example="{down_proj: 8}")),
        _mapping_to({"type": "integer", "minimum": 1, "maximum": MOST_RANK}),
    ]
    alphas = Annotated[
        dict[str, float],
        BeforeValidator(lambda value: _pattern(value, whole=False, example="{down_proj: 16}")),
        _mapping_to({"type": "number", "exclusiveMinimum": 0, "maximum": MOST_NUMBER}),
    ]
    return {
        "target_parameters": _parameters_field(),
        "modules_to_save": modules_to_save_field(),
        "exclude_modules": (
            excluded,
            setting(None, allowed=_NAMES, description="linear layers that get no adapter, also where targeted"),
        ),
        "layers_to_transform": (
            layers,
            setting(None, allowed="a layer's number, or a list", description="the layers that get adapters; null: all"),
        ),
        "layers_pattern": (
            layers_pattern,
            setting(
                None, allowed="a name, or a list", description="name of the list that layers_to_transform counts in"
            ),
        ),
        "rank_pattern": (
            ranks,
            setting({}, allowed="a mapping", description="ranks of layers that have another than r, by expression"),
        ),
        "alpha_pattern": (
            alphas,
            setting({}, allowed="a mapping", description="lora_alpha of layers that have another, by expression"),
        ),
    }


def _modules_to_save(value: object) -> object:
    if value is None:
        return ()
    listed = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
    # PEFT takes the full path as well as its end
    short = {path: name for name, path in SAVED_PATHS.items()}
    names = {short.get(name, name) if isinstance(name, str) else name for name in listed}
    if others := [name for name in names if name not in SAVED_NAMES]:
        refuse(
            Refusal(
                found=repr(others[0]),
                allowed=f"{' and '.join(SAVED_NAMES)}: the other modules are shared by all trials",
                hint=_nearest(str(others[0])),
            )
        )
    return tuple(name for name in SAVED_NAMES if name in names)


def _nearest(name: str) -> str:
    """Return what to write instead of a module that no trial has a copy of."""
    if "norm" in name:
        return "Remove it: norms stay frozen. use_dora: true trains the size of each output instead."
    if "emb" in name or name in ("wte", "wpe"):
        return f"Write {EMBEDDING}."
    if name.rsplit(".", 1)[-1] in ("head", "output", "embed_out", "score", "classifier"):
        return f"Write {HEAD}."
    return f"Remove it, and name it in target_modules if it is a linear layer: {name} then gets an adapter."


def modules_to_save_field() -> tuple[Any, Any]:
    """Return the field of the section."""
    names = Annotated[
        tuple[str, ...],
        BeforeValidator(_modules_to_save),
        PlainSerializer(list),
        WithJsonSchema({"type": ["array", "null"], "items": {"enum": list(SAVED_NAMES)}}),
    ]
    description = "whole modules that each trial trains a copy of, next to its adapter"
    return names, setting((), allowed=f"a list of {EMBEDDING} and {HEAD}", description=description)
