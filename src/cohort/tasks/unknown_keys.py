"""The text for a misspelt or misplaced key of a task file: its name here, its section, or the nearest key."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cohort.core.source_location import KeyPath
from cohort.tasks.other_names import NOT_NEEDED, OTHER_WORDS

__all__ = ["known_keys", "meant_key", "section_of", "unknown_key_hint"]


def known_keys(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Return every key of a task file by its dotted name, sections included."""
    found: dict[str, FieldInfo] = {}
    for name, info in model.model_fields.items():
        found[prefix + name] = info
        if (section := section_of(info)) is not None:
            found |= known_keys(section, f"{prefix}{name}.")
    return found


def section_of(info: FieldInfo) -> type[BaseModel] | None:
    """Return the section that a field holds, if it holds one."""
    # an optional section is a union with None
    for annotation in (info.annotation, *get_args(info.annotation)):
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return annotation
    return None


def meant_key(model: type[BaseModel], path: KeyPath) -> str | None:
    """Return the dotted name of the key that an unknown one probably stands for; None where none comes near."""
    key, section = str(path[-1]), ".".join(str(part) for part in path[:-1])
    word = _word(key)
    keys = known_keys(model)
    # the right name in the wrong section is likelier than a misspelt name of the right section
    if of_others := _of_sections(word, keys):
        return of_others[0]
    if word in OTHER_WORDS:
        own = OTHER_WORDS[word]
        # a searched key has its place in the space
        return f"{section}.{own.rpartition('.')[2]}" if section == "search.space" else own
    prefix = f"{section}." if section else ""
    siblings = [name.removeprefix(prefix) for name in keys if name.startswith(prefix)]
    # tried after the names of other tools, which must not lose to a vague likeness
    if near := get_close_matches(word, [name for name in siblings if "." not in name], n=1, cutoff=0.75):
        return prefix + near[0]
    by_leaf = {name.rsplit(".", 1)[-1]: name for name in keys}
    far = get_close_matches(word, by_leaf, n=1, cutoff=0.6)
    return by_leaf[far[0]] if far else None


def unknown_key_hint(model: type[BaseModel], path: KeyPath, *, elsewhere: str = "Move it there.") -> str:
    """Return the hint for an unknown key: its name here, the section it belongs to, or the nearest key.

    ``elsewhere`` is what to do about a key that belongs to another section.
    """
    word = _word(str(path[-1]))
    for name in (".".join([*(str(part) for part in path[:-1]), word]), word):
        if name in NOT_NEEDED:
            return f"Remove it: {NOT_NEEDED[name]}."
    if (meant := meant_key(model, path)) is None:
        return "Remove it."
    return f"Did you mean {meant}? {elsewhere if _of_sections(word, known_keys(model)) else 'Rename it.'}"


def _word(key: str) -> str:
    return key.lower().replace("-", "_")


def _of_sections(word: str, keys: Iterable[str]) -> list[str]:
    return [name for name in keys if name.rsplit(".", 1)[-1] == word]
