"""What stands for the dataset section in Python: files, rows from memory, or the section itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.input_values.plain_values import plain_value
from cohort.core.source_location import Place
from cohort.data.files.given_rows import GivenRows, given_rows
from cohort.data.files.sources import SPLITS
from cohort.tasks.loading import TaskFile
from cohort.tasks.other_names import OTHER_WORDS

__all__ = ["dataset_section", "Rows"]

Rows = Any
"""Files, a directory or a hub id, also with weights; or a list of dicts, a pandas DataFrame, a ``datasets.Dataset``."""


_ROWS = "rows (a list of dicts, a pandas DataFrame, a datasets.Dataset), or the section: {'train': ..., ...}"
_DATASET_KEYS = tuple(getattr(TaskFile.model_fields["dataset"].annotation, "model_fields", ()))


def dataset_section(dataset: Any, *, where: Place) -> tuple[dict[str, Any], dict[str, GivenRows]]:
    """Return the section as a task file would have it, and the rows that were given in place of files.

    Raises:
        InputError: every problem of the rows.
    """
    section = dict(dataset) if isinstance(dataset, Mapping) else {"train": dataset}
    if section and not any(_is_like_a_key(str(key)) for key in section):
        raise InputError(_columns_or_row(section, where=where))
    given, problems = dict[str, GivenRows](), list[Problem]()
    for split in (split for split in SPLITS if split in section):
        try:
            rows = given_rows(section[split], where=where.below(split))
        except InputError as error:
            problems += error.problems
            continue
        if rows is not None:
            # where a run keeps them, in its own directory
            section[split], given[split] = f"rows/{split}.jsonl", rows
        elif split == "train" and not _are_files(section[split]):
            problems.append(_neither_rows_nor_files(section[split], where=where.below(split)))
    if problems:
        raise InputError(problems)
    return plain_value(section), given


def _are_files(value: object) -> bool:
    if isinstance(value, Mapping):
        return "path" in value
    listed = value if isinstance(value, list | tuple) else [value]
    # dicts that are no rows are files with their weights
    return bool(listed) and all(isinstance(entry, str | os.PathLike | Mapping) for entry in listed)


def _neither_rows_nor_files(value: object, *, where: Place) -> Problem:
    allowed = "files, a list of dicts, a pandas DataFrame or a datasets.Dataset"
    hint = "Write 'train.jsonl', or a list of rows such as {'prompt': 'P', 'completion': 'C'}."
    if isinstance(value, list | tuple):
        # one entry of many is wrong, which a look at the whole list would not show
        index, entry = next(
            ((i, entry) for i, entry in enumerate(value) if not isinstance(entry, str | os.PathLike | Mapping)),
            (0, value),
        )
        if entry is not value:
            found = f"{entry!r:.60} ({type(entry).__name__}) among {len(value):,} entries"
            return Problem(where=where.below(index), found=found, allowed=allowed, hint=hint)
    return Problem(where=where, found=repr(value)[:60], allowed=allowed, hint=hint)


def _is_like_a_key(name: str) -> bool:
    return name in OTHER_WORDS or bool(get_close_matches(name, _DATASET_KEYS, n=1, cutoff=0.75))


def _columns_or_row(section: Mapping[Any, Any], *, where: Place) -> Problem:
    """Return the problem of a dict that is no section: a row by itself, or a list for each column."""
    names = ", ".join(map(str, section))
    if any(isinstance(value, list | tuple) for value in section.values()):
        hint = "Write pandas.DataFrame(columns), or [dict(zip(columns, row)) for row in zip(*columns.values())]."
        return Problem(where=where, found=f"a dict of columns: {names}", allowed=_ROWS, hint=hint)
    return Problem(where=where, found=f"a dict with {names}", allowed=_ROWS, hint="Write [row, ...], a list of rows.")
