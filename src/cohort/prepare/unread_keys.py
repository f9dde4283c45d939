"""Keys that were written and that nothing reads as the task stands: each is named, with what would be read.

What is read for certain to be a mistake is an error where it is checked: keys of objectives, schedules and VeRA. The
keys here stay valid, so that a rule or a metric can be changed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from cohort.core.setting_fields import setting_fields
from cohort.tasks.task_file import TaskFile
from cohort.tuning.early_exit.lookup import EXIT_RULES
from cohort.tuning.early_exit.rule import COMPARISON_KEYS, CommonSettings, ExitRule

__all__ = ["READ_WHEN", "ReadWhen", "unread_warnings"]


@dataclass(frozen=True, kw_only=True)
class ReadWhen:
    """When a key is read.

    Attributes:
        is_read: Whether it is, in a task.
        because: What in the task leaves it unread.
        hint: What to do, as the end of a sentence.
    """

    is_read: Callable[[TaskFile], bool]
    because: Callable[[TaskFile], str]
    hint: str


READ_WHEN: Mapping[str, ReadWhen] = {
    "evaluation.max_new_tokens": ReadWhen(
        is_read=lambda task: task.evaluation.generates,
        because=lambda task: f"{_metrics(task)}, for which no text is generated",
        hint="remove it, or write a metric of answers such as metric: exact_match",
    ),
    "evaluation.finalists_cost_fraction": ReadWhen(
        is_read=lambda task: bool(task.evaluation.finalists),
        because=lambda task: f"finalists: {task.evaluation.finalists}, which compares none at the end",
        hint="remove it, or raise finalists",
    ),
    "lora.layers_pattern": ReadWhen(
        is_read=lambda task: task.lora.layers_to_transform is not None,
        because=lambda task: "layers_to_transform: null, which names no layers to count",  # noqa: ARG005
        hint="remove it, or add layers_to_transform",
    ),
}
"""Keys of the sections that only some tasks read, by dotted name; those of exit rules are declared by the rules."""


def unread_warnings(task: TaskFile) -> Iterator[str]:
    """Yield a warning for each key that was written with another value than its default and is not read."""
    for key, when in READ_WHEN.items():
        section, _, name = key.rpartition(".")
        if (written := _written(getattr(task, section), name)) is not None and not when.is_read(task):
            yield f"{key} is {written}, which is not read with {when.because(task)}; {when.hint}"
    yield from _exit_warnings(task)


def _metrics(task: TaskFile) -> str:
    further = f" and metrics: {', '.join(task.evaluation.metrics)}" if task.evaluation.metrics else ""
    return f"metric: {task.evaluation.metric}{further}"


def _written(section: Any, name: str) -> str | None:
    """Return the value of a key in the words of a task file; None where its section leaves it as it is."""
    # a resolved task has every default written out, which says nothing
    value, default = getattr(section, name), type(section).model_fields[name].default
    if name not in section.model_fields_set or value == default:
        return None
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _exit_warnings(task: TaskFile) -> Iterator[str]:
    section, settings = task.early_exit, task.early_exit_settings()
    rule = EXIT_RULES.find(settings.rule)
    assert rule is not None, "the section has checked the rule"
    own, unread, shared = _keys_of(rule), settings.options.unread(), _shared_keys_of(rule)
    for name in type(section).model_fields:
        if name == "rule" or (written := _written(section, name)) is None:
            continue
        if name in unread:
            yield f"early_exit.{name} is {written}, which is not read with {unread[name]}; remove one of the two"
        elif name not in own and name not in shared:
            readers = [
                entry.name for entry in EXIT_RULES.built_in() if name in (*_keys_of(entry), *_shared_keys_of(entry))
            ]
            # to a key that all comparing rules share, none of its own is like
            near = "" if name in COMPARISON_KEYS else _nearest(name, own)
            yield (
                f"early_exit.{name} is {written}, which rule: {rule.name} does not read; {near}remove it"
                f"{f', or write rule: {readers[0]}' if readers else ''}"
            )


def _keys_of(rule: ExitRule) -> tuple[str, ...]:
    return tuple(setting_fields(rule.settings))


def _shared_keys_of(rule: ExitRule) -> tuple[str, ...]:
    """Return the keys of the common settings that a rule reads."""
    return tuple(
        name for name in setting_fields(CommonSettings) if name not in COMPARISON_KEYS or name in rule.comparison_keys
    )


def _nearest(name: str, own: tuple[str, ...]) -> str:
    if not own:
        return ""
    near = max(own, key=lambda other: SequenceMatcher(None, name, other).ratio())
    return f"of its own keys {near} is the nearest; "
