"""``search.earlier_results``: what earlier searches measured, checked as the search space is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cohort.core.setting_fields import MOST_NUMBER, Refusal, number_words
from cohort.tasks.fields import refuse
from cohort.tasks.hyperparameters import SEARCHABLE, is_number, parse_value
from cohort.tasks.other_names import nearest_hint
from cohort.tuning.parameters import MultipleOf, Value
from cohort.tuning.samplers import EarlierResult

__all__ = ["parse_earlier_results", "plain_earlier_results"]

_ALLOWED = (
    f"a list of mappings such as {{learning_rate: 2e-4, r: 16, value: 1.9}}, value {number_words(minimum=-MOST_NUMBER)}"
)


def parse_earlier_results(value: object) -> tuple[EarlierResult, ...]:
    """Return the results of a task file.

    Raises:
        pydantic_core.PydanticCustomError: an entry is no result; all of them.
    """
    if not isinstance(value, list | tuple):
        refuse(Refusal(found=repr(value), allowed=_ALLOWED, hint="Write one mapping for each trial."))
    found, refusals = [], list[Refusal]()
    for index, entry in enumerate(value):
        # from Python, or from a task that is checked a second time
        if isinstance(entry, EarlierResult):
            found.append(entry)
        elif not isinstance(entry, Mapping) or not is_number(entry.get("value")):
            hint = "Write value: with the task's metric, and the hyperparameters it was measured with."
            refusals.append(Refusal(found=repr(entry), allowed=_ALLOWED, hint=hint, at=(index,)))
        else:
            values: dict[str, Value] = {}
            refusals += _read(entry, values, at=index)
            found.append(EarlierResult(values=values, value=float(entry["value"])))
    if refusals:
        refuse(*refusals)
    return tuple(found)


def _read(entry: Mapping[Any, Any], values: dict[str, Value], *, at: int) -> Iterator[Refusal]:
    for name, given in entry.items():
        if name == "value":
            continue
        if name not in SEARCHABLE:
            hint = nearest_hint(str(name), SEARCHABLE)
            yield Refusal(found=f"the key {name!r}", allowed=", ".join((*SEARCHABLE, "value")), hint=hint, at=(at,))
            continue
        parsed = parse_value(given, SEARCHABLE[name], at=(at, name))
        if isinstance(parsed, Refusal):
            yield parsed
        # `2r` is a rule for trials to come; this one was measured with a number
        elif isinstance(parsed, MultipleOf):
            hint = "Write the number that the trial had."
            yield Refusal(found=repr(given), allowed="a number", hint=hint, at=(at, name))
        else:
            values[name] = parsed


def plain_earlier_results(results: Sequence[EarlierResult]) -> list[dict[str, Any]]:
    """Return the results as a task file has them."""
    return [{**result.values, "value": result.value} for result in results]
