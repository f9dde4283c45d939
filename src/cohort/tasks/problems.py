"""Turns pydantic's errors into problems with place, found value, allowed values and hint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from cohort.core.errors import Problem
from cohort.core.input_values.nearest_value import keys_text, nearest_word
from cohort.core.source_location import KeyPath, Place, dotted
from cohort.tasks.fields import REFUSAL_TYPE, refusals_of
from cohort.tasks.hyperparameters import quoted_number, unbounded_number
from cohort.tasks.unknown_keys import meant_key, section_of, unknown_key_hint
from cohort.tasks.yaml_lines import TaskOrigin, with_spaced_colon

__all__ = ["problems_from"]


def _field_at(model: type[BaseModel], path: KeyPath) -> FieldInfo | None:
    """Return the field that a path leads to or through."""
    found: FieldInfo | None = None
    current: type[BaseModel] | None = model
    # a path may go on inside a value, by positions and keys that are no fields
    for part in path:
        if current is None or part not in current.model_fields:
            break
        found = current.model_fields[str(part)]
        current = section_of(found)
    return found


def _allowed(info: FieldInfo | None) -> str:
    extra = info.json_schema_extra if info is not None else None
    return str(extra["allowed"]) if isinstance(extra, Mapping) and "allowed" in extra else "a valid value"


def _found(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    # a long list would hide the rest of the message
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _hint(detail: ErrorDetails, info: FieldInfo | None) -> str:
    value, kind = detail["input"], detail["type"]
    name = str(detail["loc"][-1])
    if kind == "literal_error" and isinstance(value, str) and info is not None:
        words = [word for word in get_args(info.annotation) if isinstance(word, str)]
        near = nearest_word(value, words)
        return f"Did you mean {name}: {near}?" if near else "Choose one of these."
    if kind == "bool_type":
        return "Write true or false, without quotes."
    extra = None if info is None else info.json_schema_extra
    if isinstance(extra, Mapping) and "example" in extra:
        return quoted_number(value) or f"Write for example {extra['example']}."
    if info is None or info.is_required() or info.default is None:
        counts = _allowed(info).startswith("a whole number of at least 1")
        return f"Write for example {name}: 100." if counts else "Write one of the allowed values."
    if isinstance(info.default, str | int | float):
        default = str(info.default).lower() if isinstance(info.default, bool) else str(info.default)
        unbounded = unbounded_number(value, example=f"{name}: {default}, the default")
        return unbounded or quoted_number(value) or f"Write for example {name}: {default}, the default."
    return "Write one of the allowed values, or remove the key."


def _problem(detail: ErrorDetails, *, model: type[BaseModel], origin: TaskOrigin) -> list[tuple[KeyPath, Problem]]:
    path: KeyPath = detail["loc"]
    info = _field_at(model, path)
    if detail["type"] == REFUSAL_TYPE:
        placed = [((*path, *refusal.at), refusal) for refusal in refusals_of(detail.get("ctx"))]
        return [(at, replace(refusal.problem(Place()), where=origin.where(at))) for at, refusal in placed]
    if detail["type"] == "extra_forbidden":
        section = section_of(info) if info is not None else model
        found = f"the unknown key {str(path[-1])!r}"
        meant = (meant_key(model, path) or "").removeprefix(f"{dotted(path[:-1])}.")
        allowed = f"the keys {keys_text(str(path[-1]), list((section or model).model_fields), meant=meant)}"
        hint = unknown_key_hint(model, path)
        # {target_modules: q_proj, v_proj}: to YAML the second is a key
        if detail["input"] is None and hint == "Remove it.":
            hint = "Write a value behind it; a list stands in brackets: [a, b]. Or remove it."
    elif detail["type"] == "missing":
        found, allowed = "nothing", _allowed(info)
        hint = f"Add {dotted(path)}: {(info.description if info else None) or 'a value'}."
    elif info is not None and (section := section_of(info)) is not None:
        found, allowed = _found(detail["input"]), f"a section with the keys {', '.join(section.model_fields)}"
        hint = "Write the keys below it, indented; in Python a dict."
        # a list of files is as natural to write as one, and both are what the section needs most
        if path == ("dataset",) and isinstance(detail["input"], str | list):
            hint = "Write dataset: {train: FILE}, with other keys behind the file."
        written = detail["input"]
        if isinstance(written, str) and written.partition(":")[0] in section.model_fields:
            hint = f"Write a space behind the colon: `{with_spaced_colon(written) or written}`."
    else:
        found, allowed, hint = _found(detail["input"]), _allowed(info), _hint(detail, info)
    return [(path, Problem(where=origin.where(path), found=found, allowed=allowed, hint=hint))]


def problems_from(
    error: ValidationError, *, model: type[BaseModel], origin: TaskOrigin
) -> list[tuple[KeyPath, Problem]]:
    """Return every problem with the path it is about, in pydantic's order."""
    details = error.errors()
    found = [entry for detail in details for entry in _problem(detail, model=model, origin=origin)]
    missing = {detail["loc"] for detail in details if detail["type"] == "missing"}
    # what is missing has another name in the file: renaming it is the one thing to do
    hints = {unknown_key_hint(model, detail["loc"]) for detail in details if detail["type"] == "extra_forbidden"}
    renamed = {path for path in missing if f"Did you mean {dotted(path)}? Rename it." in hints}
    return [(path, problem) for path, problem in found if path not in renamed]
