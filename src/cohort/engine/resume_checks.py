"""A run continues only with what it began with: task, rows, weights and kind of device; a difference is named.

Another processor or other versions of what computes only change the last bits: they give a warning, not an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.numerics import AUTO, Numerics
from cohort.core.source_location import Place
from cohort.engine.changed_rows import RESTORE_OR_POINT_TO, row_problems, short
from cohort.metrics import metric_name
from cohort.prepare.preparation import Preparation
from cohort.runs.fact_groups import InputFacts, MachineFacts
from cohort.runs.facts import RunFacts
from cohort.tasks.functions import FUNCTION_KEYS
from cohort.tasks.paths import PATH_KEYS
from cohort.tasks.task_file import TaskFile

__all__ = [
    "KEYS_THAT_MAY_CHANGE",
    "changed_functions_warning",
    "require_same_inputs",
    "require_same_task",
    "surroundings_warning",
]

_RESTORE = "Restore it as it was, or start a new run with `cohort tune`."
# these say where inputs are: what is there is compared, so that a run can move with its inputs
_PLACES = tuple(".".join(map(str, key)) for key in PATH_KEYS)
_FUNCTIONS = tuple(".".join(key) for key in FUNCTION_KEYS)
# what a step's numbers come from
_COMPUTING_PACKAGES = ("cohort-lora", "torch", "transformers", "triton")
# settings that change no number
KEYS_THAT_MAY_CHANGE = ("memory", "microbatches", "num_gpus", "packing", "save_total_limit", "strategy")


def require_same_task(
    before: Mapping[str, Any],
    task: TaskFile,
    *,
    path: Path,
    since: str = "as when the run began",
    hint: str = _RESTORE,
    machine: MachineFacts | None = None,
) -> None:
    """Refuse a task that is no longer what the run began with.

    Args:
        before: The task as it was recorded.
        task: The task as it is now.
        path: Its file, for messages.
        since: When it was recorded, for messages.
        hint: How to fix a key that differs.
        machine: Where the run began, as recorded: a CPU has one kind of numerics, and a GPU may have chosen.

    Raises:
        InputError: every key that differs, with both values.
    """
    found = _differences(before, task.model_dump(mode="json"))
    differences = [
        (key, then, now)
        for key, then, now in found
        if not _is_place(key, then, now)
        and not _has_no_effect(key, task)
        and not (key == "numerics" and _keeps_numerics(then, now, task=task, machine=machine))
        and not (then is None and _is_default(key, now, task))
    ]
    if differences:
        raise InputError(
            [
                Problem(
                    where=_place(key, task, path=path),
                    found=_shown(now),
                    allowed=f"{_as_before(key, then, machine)}, {since}",
                    hint=hint,
                )
                for key, then, now in differences
            ]
        )


def _place(key: str, task: TaskFile, *, path: Path) -> Place:
    """Return where a key has the value that it has now: an option, or a line of the task's file."""
    place = task.where(key)
    return place if place.option or place.file == str(path) else Place(file=str(path), text=key)


def _is_place(key: str, *values: Any) -> bool:
    """Return whether only the place of an input differs; what is there is compared."""
    # a number is a share of the training rows, which is part of the task
    if key in _PLACES:
        return all(isinstance(value, str | list) for value in values)
    # the file of a metric function may have moved; another function is another metric
    return key in _FUNCTIONS and len({json.dumps(_function_names(value)) for value in values}) == 1


def _function_names(value: Any) -> list[str] | None:
    entries = value if isinstance(value, list) else [value]
    return [metric_name(entry) for entry in entries] if all(isinstance(entry, str) for entry in entries) else None


def _has_no_effect(key: str, task: TaskFile) -> bool:
    section, _, name = key.partition(".")
    if section == "early_exit" and name:
        # A task holds the settings of every built-in rule. A later version may have more, or describe fewer.
        return name not in task.early_exit_settings().as_keys()
    return section in KEYS_THAT_MAY_CHANGE


def _keeps_numerics(then: str | None, now: str, *, task: TaskFile, machine: MachineFacts | None) -> bool:
    """Return whether a task leaves a run the numerics that it began with, or names the same."""
    if machine is not None and _kind(machine.device) == "cpu":
        # answers that a trial trains on are drawn in other tiles where it asks for that
        return task.rewards is None or (then == Numerics.EXACT) == (now == Numerics.EXACT)
    decided = None if machine is None else machine.numerics
    began_with = decided if then == AUTO else then
    return now in (AUTO, began_with)


def _as_before(key: str, then: Any, machine: MachineFacts | None) -> str:
    """Return what a key may hold; where a GPU chose the numerics, a task may name them as well."""
    if key == "numerics" and then == AUTO and machine is not None and machine.numerics is not None:
        return f"{machine.numerics} | {AUTO}"
    return _shown(then)


def _is_default(key: str, value: Any, task: TaskFile) -> bool:
    """Return whether a key has its default: the version that began the run may not have known the key."""
    section, _, name = key.partition(".")
    # a key that stands in no section is the task's own
    known = type(getattr(task, section, None)) if name else type(task)
    name = name or section
    described = getattr(known, "model_fields", {}).get(name)
    return described is not None and json.dumps(value) == json.dumps(
        described.get_default(call_default_factory=True), default=str
    )


def require_same_inputs(facts: RunFacts, preparation: Preparation) -> None:
    """Refuse to continue with other data, weights or kind of device than the run began with.

    Raises:
        InputError: what differs, all of it.
    """
    task, now = preparation.task, preparation.facts
    problems = row_problems(facts.inputs, now.inputs, task=task)
    if facts.inputs.model_hash != now.inputs.model_hash:
        problems.append(
            Problem(
                where=Place(key=("model_name_or_path",), text=task.model_name_or_path),
                found=f"the base model's weights or configuration changed: {short(now.inputs.model_hash)}",
                allowed=f"{short(facts.inputs.model_hash)}, as when the run began",
                hint=RESTORE_OR_POINT_TO.format(key="model_name_or_path"),
            )
        )
    if facts.inputs.reference_adapter_hash != now.inputs.reference_adapter_hash:
        problems.append(
            Problem(
                where=Place(key=("objective", "reference_adapter")),
                found=f"the reference adapter changed: {short(now.inputs.reference_adapter_hash)}",
                allowed=f"{short(facts.inputs.reference_adapter_hash)}, as when the run began",
                hint=RESTORE_OR_POINT_TO.format(key="objective.reference_adapter"),
            )
        )
    if facts.inputs.start_adapter_hash != now.inputs.start_adapter_hash:
        problems.append(
            Problem(
                where=Place(key=("lora", "adapter_name_or_path")),
                found=f"the adapter that trials begin with changed: {short(now.inputs.start_adapter_hash)}",
                allowed=f"{short(facts.inputs.start_adapter_hash)}, as when the run began",
                hint=RESTORE_OR_POINT_TO.format(key="lora.adapter_name_or_path"),
            )
        )
    if _kind(facts.machine.device) != _kind(now.machine.device):
        problems.append(
            Problem(
                where=Place(key=("num_gpus",)),
                found=f"the device changed: {_shown(now.machine.device)}",
                allowed=f"{_shown(facts.machine.device)}, as when the run began",
                hint=_RESTORE,
            )
        )
    if problems:
        raise InputError(problems)


def surroundings_warning(before: MachineFacts, now: MachineFacts) -> str | None:
    """Return which packages and device changed since the run began; None if none did.

    Args:
        before: From the run record.
        now: From the preparation.
    """
    then, versions = before.versions or {}, now.versions or {}
    changed = {name: (then.get(name), versions.get(name)) for name in _COMPUTING_PACKAGES}
    changed["device"] = (before.device, now.device)
    shown = ", ".join(f"{name} {_shown(b)} (was {_shown(a)})" for name, (a, b) in changed.items() if a != b)
    return f"{shown}: the bits of the results may differ from those of the uninterrupted run" if shown else None


def changed_functions_warning(before: InputFacts, now: InputFacts) -> str | None:
    """Return which functions of the user are no longer what they were when the run began; None if all are.

    No error: a function that failed in the middle of a run has to be corrected before the run can go on.
    """
    then, found = before.metric_functions or {}, now.metric_functions or {}
    changed = [name for name, code in then.items() if found.get(name, code) != code]
    told = [
        f"the {kind} {name.partition(':')[2]} changed since the run began: {values} before and after this resume are "
        "not comparable, and trials go on with it as it is now"
        for prefix, kind, values in (("loss:", "loss function", "losses"), ("reward:", "reward", "rewards"))
        for name in changed
        if name.startswith(prefix)
    ]
    if metrics := [name for name in changed if not name.startswith(("loss:", "reward:"))]:
        values = "its values" if len(metrics) == 1 else "their values"
        function = "function" if len(metrics) == 1 else "functions"
        told.insert(
            0,
            f"the metric {function} {', '.join(metrics)} changed since the run began: {values} before and after this "
            "resume are not comparable, and the winner is chosen among both",
        )
    return "; ".join(told) or None


def _kind(device: str | None) -> str:
    # the fact is "cpu (its name)"
    return str(device).partition(" (")[0]


def _differences(then: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    for key in dict.fromkeys([*then, *now]):
        old, new = then.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif json.dumps(old) != json.dumps(new):
            yield f"{prefix}{key}", old, new


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
