"""What a task file of a client may not say: paths, code, trackers, and how the server divides its machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import KeyPath, Place

__all__ = ["require_harmless"]

# the server decides these for all tenants, or they name files and programs of its machine
_SERVERS_OWN: Mapping[KeyPath, str] = {
    ("num_gpus",): "the server places tasks",
    ("strategy",): "the server places tasks",
    ("packing",): "the server places tasks",
    ("microbatches",): "the server places tasks",
    ("priority",): "shares of tenants decide whose turn it is",
    ("memory",): "the server divides its memory",
    ("report_to",): "the server's trackers are not its clients'",
    ("quantization",): "the server has one copy of the base model",
    ("lora", "adapter_name_or_path"): "a path of the server",
    ("objective", "reference_adapter"): "a path of the server",
    ("objective", "function"): "code of the server",
    ("dataset", "chat_template"): "the server's base model has its own",
    ("dataset", "base_directory"): "a path of the server",
}
# values of these name functions where they have a colon, or a path
_NAMES: tuple[KeyPath, ...] = (("evaluation", "metric"), ("evaluation", "metrics"), ("objective",), ("rewards",))


def require_harmless(document: Mapping[str, Any], *, where: KeyPath = ()) -> None:
    """Check a task that a client wrote, before anything in it is looked up.

    Raises:
        InputError: it names a path, a function or what the server alone decides; all such keys.
    """
    problems = [*_own_keys(document), *_functions(document)]
    if problems:
        raise InputError(
            [
                Problem(where=Place(key=(*where, *key)), found=found, allowed=allowed, hint=hint)
                for key, found, allowed, hint in problems
            ]
        )


def _own_keys(document: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str, str, str]]:
    for path, why in _SERVERS_OWN.items():
        found: Any = document
        for part in path:
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is not None:
            yield path, repr(found)[:60], f"nothing: {why}", "Remove the key."


def _functions(document: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str, str, str]]:
    for path in _NAMES:
        found: Any = document
        for part in path:
            found = found.get(part) if isinstance(found, Mapping) else None
        for name in _texts(found):
            if ":" in name or "/" in name or "\\" in name:
                yield path, repr(name)[:60], "names of Cohort's own", "Write a name: a server runs no client's code."


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _texts(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(entry)
