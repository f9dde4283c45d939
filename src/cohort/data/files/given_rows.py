"""Rows given from Python (lists of dicts, pandas frames, data sets) as JSON lines, which a run keeps."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.input_values.plain_values import plain_value
from cohort.core.source_location import Place
from cohort.data.problems import LISTED_PROBLEMS, capped

__all__ = ["GivenRows", "given_rows"]

_ALLOWED = "files, a list of dicts, a pandas DataFrame or a datasets.Dataset"
_VALUES = "text, numbers, true, false, None, lists and dicts"


@dataclass(frozen=True, kw_only=True)
class GivenRows:
    """Rows as JSON lines, in their order: a run's copy of them, and what they are known by.

    Attributes:
        content: One JSON object a line, UTF-8. A missing value (NaN) is null.
        columns: The names that the first row has.
    """

    content: bytes

    @property
    def columns(self) -> frozenset[str]:
        first, _, _ = self.content.partition(b"\n")
        return frozenset(json.loads(first)) if first else frozenset()


def given_rows(value: object, *, where: Place) -> GivenRows | None:
    """Return the rows that ``value`` holds; None if it names files, or is anything else that task files can say.

    pandas and datasets are recognised by the names of their modules, so neither has to be installed.

    Raises:
        InputError: a row is no dict, a value cannot be written as JSON, or the rows cannot be counted.
    """
    rows = _rows_of(value, where=where)
    if rows is None:
        return None
    lines, problems = [], list[Problem]()
    for index, row in enumerate(rows):
        place = where.below(index)
        if not isinstance(row, Mapping):
            problems.append(_no_row(row, place))
            continue
        plain = {}
        for name, entry in row.items():
            plain[str(name)] = _json_value(entry, place=place.below(str(name)), problems=problems)
        lines.append(_line(plain))
    if problems:
        raise InputError(capped(problems, limit=LISTED_PROBLEMS))
    return GivenRows(content=b"".join(lines))


def _rows_of(value: object, *, where: Place) -> Iterable[object] | None:
    library, found = type(value).__module__.partition(".")[0], f"a value of type {type(value).__name__}"
    known: Any = value
    rows: Iterable[object]
    if library == "pandas" and hasattr(value, "columns"):
        if not known.columns.is_unique:
            twice = ", ".join(dict.fromkeys(str(name) for name in known.columns[known.columns.duplicated()]))
            hint = "Rename one of them, or leave it out."
            raise InputError(Problem(where=where, found=f"two columns {twice}", allowed="each name once", hint=hint))
        rows = known.to_dict("records")
        return rows
    if library == "datasets" and hasattr(value, "column_names") and hasattr(value, "__len__"):
        # a format (torch, numpy, ...) changes only how rows are shown
        rows = iter(known.with_format(None))
        return rows
    if library == "numpy" and hasattr(value, "tolist"):
        value = known.tolist()
    if isinstance(value, list | tuple) and any(isinstance(entry, Mapping) for entry in value):
        return None if any(map(_is_file_entry, value)) else value
    # a stream may have no end, and a second reading may give other rows
    if library in ("pandas", "datasets", "torch") or isinstance(value, Iterator):
        hint = "Write list(rows), or rows.to_frame() for a Series; of a stream, list(stream.take(10_000))."
        raise InputError(Problem(where=where, found=found, allowed=_ALLOWED, hint=hint))
    return None


def _is_file_entry(entry: object) -> bool:
    """Return whether an entry names a file and its weight: as a row it would have nothing to train on."""
    if not isinstance(entry, Mapping) or "path" not in entry:
        return False
    # a misspelt key is named as one, and not as a column of unknown rows
    return all(name == "path" or get_close_matches(str(name), ("weight",), cutoff=0.8) for name in entry)


def _no_row(row: object, place: Place) -> Problem:
    hint = 'Write every row as a dict such as {"prompt": "P", "completion": "C"}.'
    return Problem(
        where=place, found=f"a value of type {type(row).__name__}", allowed="a dict, as the other rows are", hint=hint
    )


def _line(row: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        # half of a surrogate pair, which reading reports with its row
        return json.dumps(row).encode() + b"\n"


def _json_value(value: Any, *, place: Place, problems: list[Problem]) -> Any:
    # pandas has values of its own for what is missing; its NaT is a datetime as well
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    value = plain_value(value)
    if value is None or isinstance(value, bool | int | str):
        # subclasses of str, such as an enum's, are text
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {
            str(key): _json_value(entry, place=place.below(str(key)), problems=problems) for key, entry in value.items()
        }
    if isinstance(value, list):
        return [_json_value(entry, place=place.below(index), problems=problems) for index, entry in enumerate(value)]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    hint = "Convert it to text or numbers, or leave the column out."
    problems.append(Problem(where=place, found=f"a value of type {type(value).__name__}", allowed=_VALUES, hint=hint))
    return None
