"""``lora.modules_to_save``: the whole modules that each trial trains a copy of, with PEFT's name and meaning."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from cohort.adapters.saved.saved_modules import EMBEDDING, HEAD, SAVED_NAMES, SAVED_PATHS
from cohort.core.setting_fields import Refusal
from cohort.tasks.fields import refuse, setting

__all__ = ["modules_to_save_field"]


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
