"""The text for a misspelt or misplaced key of a task file: its name here, its section, or the nearest key."""

from __future__ import annotations

from difflib import get_close_matches
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cohort.core.source_location import KeyPath
from cohort.tasks.other_names import NOT_NEEDED, OTHER_WORDS

__all__ = ["known_keys", "section_of", "unknown_key_hint"]


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


def unknown_key_hint(model: type[BaseModel], path: KeyPath, *, elsewhere: str = "Move it there.") -> str:
    """Return the hint for an unknown key: its name here, the section it belongs to, or the nearest key.

    ``elsewhere`` is what to do about a key that belongs to another section.
    """
    key, section = str(path[-1]), ".".join(str(part) for part in path[:-1])
    word = key.lower().replace("-", "_")
    for name in (f"{section}.{word}", word):
        if name in NOT_NEEDED:
            return f"Remove it: {NOT_NEEDED[name]}."
    keys = known_keys(model)
    prefix = f"{section}." if section else ""
    siblings = [name.removeprefix(prefix) for name in keys if name.startswith(prefix)]
    # tried after the names of other tools, which must not lose to a vague likeness
    near = get_close_matches(word, [name for name in siblings if "." not in name], n=1, cutoff=0.75)
    of_others = [name for name in keys if name.rsplit(".", 1)[-1] == word]
    # the right name in the wrong section is likelier than a misspelt name of the right section
    if of_others:
        return f"Did you mean {of_others[0]}? {elsewhere}"
    if word in OTHER_WORDS:
        own = OTHER_WORDS[word]
        # a searched key has its place in the space
        if section == "search.space":
            own = f"{section}.{own.rpartition('.')[2]}"
        return f"Did you mean {own}? Rename it."
    if near:
        return f"Did you mean {prefix}{near[0]}? Rename it."
    by_leaf = {name.rsplit(".", 1)[-1]: name for name in keys}
    far = get_close_matches(word, by_leaf, n=1, cutoff=0.6)
    return f"Did you mean {by_leaf[far[0]]}? Rename it." if far else "Remove it."
