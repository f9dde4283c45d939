"""What an objective's file says of itself, read without torch: task files, plans, reports and messages need no more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cohort.core.registry import DeclaredRegistry
from cohort.core.setting_fields import SettingField, choice, flag, number, setting_in, share, whole
from cohort.data.settings import RowReading

__all__ = [
    "DEFAULT_OBJECTIVE_NAME",
    "OBJECTIVE_DECLARATIONS",
    "BatchComparison",
    "ObjectiveDeclaration",
    "Searched",
    "compared_by",
    "proposed_for",
    "searched_of",
]

DEFAULT_OBJECTIVE_NAME = "sft"


@dataclass(frozen=True, kw_only=True)
class Searched:
    """A value of an objective: a key of its section, which ``search.space`` may set as well.

    Attributes:
        made: What ``number``, ``choice`` and their like return: default, bounds and description.
        example: A list that could be written, for messages.
        only_with: Other keys, and the values that they must have for this one to be read.
    """

    made: Any
    example: str
    only_with: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def setting(self) -> SettingField:
        return setting_in(self.made)


@dataclass(frozen=True, kw_only=True)
class BatchComparison:
    """An objective whose terms compare a row with the other rows of its batch.

    Attributes:
        why: What it compares, a clause: "whose ...".
        why_undivided: Why a pipeline cannot train it, a clause.
        instead: The section that compares nothing.
        only_with: The values of other keys with which it compares.
    """

    why: str
    why_undivided: str
    instead: str
    only_with: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def applies(self, values: Mapping[str, object]) -> bool:
        return all(values.get(key) in allowed for key, allowed in self.only_with.items())


@dataclass(frozen=True, kw_only=True)
class ObjectiveDeclaration:
    """What is known of an objective before it is imported.

    Attributes:
        name: What ``objective`` calls it.
        summary: What it is, in one line.
        reads: What it reads of a row.
        values: The keys of its section that can be searched, in order.
        needs_reference: Whether it compares with a reference model.
        measures: Metrics that it measures together with the loss; more is better, no text is generated for them.
        loss_unit: The unit of its loss; empty where it is a bare number.
        compares_batch: What it compares rows of a batch for.
        first_choice: Where `cohort init` proposes it for rows of its kind: what the line of the task file says of it.
    """

    name: str
    summary: str
    reads: RowReading
    values: Mapping[str, Searched] = field(default_factory=dict)
    needs_reference: bool = False
    measures: tuple[str, ...] = ()
    loss_unit: str = ""
    compares_batch: BatchComparison | None = None
    first_choice: str = ""

    @property
    def group_size(self) -> int:
        """Consecutive rows of the data that share a term: both answers of a pair, or one."""
        return 2 if self.reads is RowReading.PAIRS else 1

    @property
    def samples_answers(self) -> bool:
        """Whether answers are drawn and rewarded, so that the task needs rewards."""
        return self.reads is RowReading.PROMPTS

    @property
    def defaults(self) -> dict[str, Any]:
        """Its values where a task has none."""
        return {name: value.setting.default for name, value in self.values.items()}

    def default(self, name: str) -> Any:
        return self.values[name].setting.default


def _conflict(entry: ObjectiveDeclaration) -> str | None:
    """Return why another package's objective cannot stand with ours: values are one flat space."""
    for name, value in entry.values.items():
        found = value.setting
        known = [own.values[name].setting for own in OBJECTIVE_DECLARATIONS.built_in() if name in own.values]
        if known and all((found.kind, found.bounds) != (own.kind, own.bounds) for own in known):
            return f"its value {name!r} means something else in Cohort"
    return None


OBJECTIVE_DECLARATIONS = DeclaredRegistry(
    kind=ObjectiveDeclaration,
    noun="objective",
    package="cohort.training.objectives.kinds",
    constant="OBJECTIVE",
    group="cohort.objectives",
    default=DEFAULT_OBJECTIVE_NAME,
    conflict=_conflict,
    words={
        "ObjectiveDeclaration": ObjectiveDeclaration,
        "BatchComparison": BatchComparison,
        "RowReading": RowReading,
        "Searched": Searched,
        "choice": choice,
        "flag": flag,
        "number": number,
        "share": share,
        "whole": whole,
    },
)


def searched_of(entries: Iterable[ObjectiveDeclaration]) -> dict[str, Searched]:
    """Return the values of several objectives by name: of one that several read, the words of all of them."""
    readers: dict[str, list[tuple[str, Searched]]] = {}
    for entry in entries:
        for name, value in entry.values.items():
            readers.setdefault(name, []).append((entry.name, value))
    return {name: _merged(found) for name, found in readers.items()}


def _merged(readers: Sequence[tuple[str, Searched]]) -> Searched:
    meanings: dict[str, list[str]] = {}
    for objective, value in readers:
        meanings.setdefault(value.setting.description, []).append(objective)
    first = readers[0][1]
    setting = replace(
        first.setting,
        description="; ".join(f"{', '.join(names)}: {meaning}" for meaning, names in meanings.items()),
    )
    if setting.bounds:
        # each objective's own bounds are checked where it is known which one reads the value
        bounds = _loosest([value.setting.bounds for _, value in readers])
        setting = replace(setting, bounds=bounds, allowed=_allowed([value.setting for _, value in readers]))
    if setting.options:
        options = tuple(dict.fromkeys(word for _, value in readers for word in value.setting.options))
        setting = replace(setting, options=options, allowed=" | ".join(options))
    return replace(first, made=setting)


def _loosest(several: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the bounds within which some of several lie."""
    found: dict[str, float] = {}
    for inclusive, exclusive, further in (("ge", "gt", min), ("le", "lt", max)):
        limits = [(own[key], key) for own in several for key in (inclusive, exclusive) if key in own]
        # a side without a bound in one of them has none
        if len(limits) == len(several):
            limit = further(value for value, _ in limits)
            found[inclusive if (limit, inclusive) in limits else exclusive] = limit
    return found


def _allowed(several: Sequence[SettingField]) -> str:
    return " | ".join(dict.fromkeys(own.allowed for own in several))


def compared_by(metric: str) -> str:
    """Return, in words, the objectives that measure ``metric``."""
    *first, last = (entry.name for entry in OBJECTIVE_DECLARATIONS.usable() if metric in entry.measures)
    return f"{', '.join(first)} or {last}" if first else last


def proposed_for(reads: RowReading) -> ObjectiveDeclaration:
    """Return the objective that rows of a kind are for first."""
    entries = OBJECTIVE_DECLARATIONS.built_in()
    return next((entry for entry in entries if entry.first_choice and entry.reads is reads), entries[0])
