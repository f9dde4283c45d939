"""``dataset.train`` as a list of ``{path: FILE, weight: 0.3}``: taken apart into ``train`` and ``weights``.

Only task files and tasks in Python may write it so: all that reads a task sees paths and weights apart. A run can then
be told the new place of its rows without their weights, and other weights are another task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from cohort.core.errors import Problem
from cohort.core.setting_fields import Refusal, setting_fields
from cohort.data.setting_refusals import weight_refusal
from cohort.data.settings import DatasetSettings
from cohort.tasks.other_names import OTHER_WORDS
from cohort.tasks.yaml_lines import TaskOrigin

__all__ = ["split_weights"]

_KEYS = ("path", "weight")
_ALLOWED = "a path, or {path: FILE, weight: NUMBER}"
_TRAIN = ("dataset", "train")


def split_weights(data: dict[str, Any], origin: TaskOrigin) -> list[Problem]:
    """Replace entries with weights by paths and ``weights``, in place; return what is wrong with them."""
    section = data.get("dataset")
    if not isinstance(section, Mapping):
        return []
    train = section.get("train")
    entries = train if isinstance(train, list) else [train]
    if not any(isinstance(entry, Mapping) for entry in entries):
        return []
    refusals = [*_entry_refusals(entries)]
    paths = [entry.get("path") if isinstance(entry, Mapping) else entry for entry in entries]
    weights = [entry.get("weight") for entry in entries if isinstance(entry, Mapping) and "weight" in entry]
    # the section is the caller's; what is no path is left for validation to name
    section = data["dataset"] = {**section, "train": paths if isinstance(train, list) else paths[0]}
    # a recorded task has weights apart, and the new places of its rows may repeat them
    if weights and section.get("weights") not in (None, weights):
        refusals.append(
            Refusal(
                found=f"the weights {weights}, but dataset.weights {section['weights']}",
                allowed="one of the two, which mean the same",
                hint="Leave one out; a run that continues keeps the weights that it began with.",
            )
        )
    elif weights and not refusals:
        section["weights"] = weights
    is_list = isinstance(train, list)
    return [
        Problem(
            where=origin.where((*_TRAIN, *(refusal.at if is_list else refusal.at[1:]))),
            found=refusal.found,
            allowed=refusal.allowed,
            hint=refusal.hint,
        )
        for refusal in refusals
    ]


def _entry_refusals(entries: Sequence[object]) -> list[Refusal]:
    refusals = []
    have_weights = any(isinstance(entry, Mapping) and "weight" in entry for entry in entries)
    for index, entry in enumerate(entries):
        found = dict(entry) if isinstance(entry, Mapping) else {"path": entry}
        for name in found:
            if name not in _KEYS:
                hint = _key_hint(str(name))
                allowed = "the keys path and weight"
                refusals.append(
                    Refusal(found=f"the unknown key {name!r}", allowed=allowed, hint=hint, at=(index, str(name)))
                )
        if "path" not in found:
            refusals.append(Refusal(found="no path", allowed=_ALLOWED, hint="Add path: FILE.", at=(index,)))
        if "weight" in found:
            if (refusal := weight_refusal(found["weight"])) is not None:
                refusals.append(
                    Refusal(found=refusal.found, allowed=refusal.allowed, hint=refusal.hint, at=(index, "weight"))
                )
        # a share for some entries alone would leave open what the others have
        elif have_weights:
            refusals.append(
                Refusal(
                    found=f"{found.get('path')!r} without a weight",
                    allowed="a weight for every entry, or for none",
                    hint="Write {path: FILE, weight: NUMBER}; equal weights give equal shares.",
                    at=(index,),
                )
            )
    return refusals


def _key_hint(name: str) -> str:
    near = get_close_matches(name.lower(), _KEYS, n=1, cutoff=0.6)
    if near:
        return f"Did you mean {near[0]}? Rename it."
    own = OTHER_WORDS.get(name.lower(), f"dataset.{name.lower()}")
    if own.rpartition(".")[2] in setting_fields(DatasetSettings):
        return f"Write {own}, which holds for all entries."
    return "Remove it."
