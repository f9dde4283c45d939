"""Which hyperparameters of a run are searched, and which are multiples of another, by its recorded task."""

from __future__ import annotations

from collections.abc import Mapping

from cohort.runs.facts import RunFacts
from cohort.runs.records import JsonValue
from cohort.tasks.hyperparameters import SEARCHABLE, parse_value
from cohort.tuning.parameters import MultipleOf

__all__ = ["followed_parameters", "searched_names", "searched_ranges"]


def _task_section(facts: RunFacts, *keys: str) -> Mapping[str, JsonValue]:
    """Return a section of the recorded task; empty where the record has none."""
    found: JsonValue = dict(facts.task.document or {})
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def searched_names(facts: RunFacts) -> tuple[str, ...]:
    """Return the keys of the task's ``search.space`` in the order written; none where no task is recorded."""
    return tuple(_task_section(facts, "search", "space"))


def followed_parameters(facts: RunFacts) -> dict[str, str]:
    """Return the base of each hyperparameter that the task writes as a multiple of another (``lora_alpha: 2r``)."""
    # read from the task and not from the trials: in a few trials, any two hyperparameters that never repeat a value
    # look as if one were a multiple of the other
    space, lora = _task_section(facts, "search", "space"), _task_section(facts, "lora")
    followed = {}
    for name, kind in SEARCHABLE.items():
        if not kind.is_rank_multiple_allowed:
            continue
        written = space[name] if name in space else lora.get(name)
        # a list of one multiple is that multiple; of several, the factor is searched
        entry = written[0] if isinstance(written, list) and len(written) == 1 else written
        multiple = parse_value(entry, kind, at=())
        if isinstance(multiple, MultipleOf):
            followed[name] = multiple.parameter
    return followed


def searched_ranges(facts: RunFacts) -> dict[str, bool]:
    """Return the hyperparameters that the task searches in a range without steps, and whether in the logarithm."""
    entries = _task_section(facts, "search", "space").items()
    return {
        name: bool(entry.get("log"))
        for name, entry in entries
        if isinstance(entry, dict) and "min" in entry and entry.get("num") is None and entry.get("step") is None
    }
