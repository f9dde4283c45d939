"""Which hyperparameters of a run are searched, by its recorded task; read without the layers that check a task."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cohort.runs.facts import RunFacts
from cohort.runs.records import JsonValue

__all__ = ["chosen_names", "searched_names", "searched_ranges", "task_section"]

# how a task file writes a multiple of the LoRA rank
_MULTIPLE = re.compile(r"[0-9.]*r")


def task_section(facts: RunFacts, *keys: str) -> Mapping[str, JsonValue]:
    """Return a section of the recorded task; empty where the record has none."""
    found: JsonValue = dict(facts.task.document or {})
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def searched_names(facts: RunFacts) -> tuple[str, ...]:
    """Return the keys of the task's ``search.space`` in the order written; none where no task is recorded."""
    return tuple(task_section(facts, "search", "space"))


def chosen_names(facts: RunFacts) -> tuple[str, ...]:
    """Return the searched keys that no other one determines; ``lora_alpha: 2r`` follows ``r``, so it is left out."""
    space = task_section(facts, "search", "space")
    return tuple(name for name, entry in space.items() if not (isinstance(entry, str) and _MULTIPLE.fullmatch(entry)))


def searched_ranges(facts: RunFacts) -> dict[str, bool]:
    """Return the hyperparameters that the task searches in a range without steps, and whether in the logarithm."""
    entries = task_section(facts, "search", "space").items()
    return {
        name: bool(entry.get("log"))
        for name, entry in entries
        if isinstance(entry, dict) and "min" in entry and entry.get("num") is None and entry.get("step") is None
    }
