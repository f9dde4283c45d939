"""Reading rows: files, given rows and hub data sets become objects that know their line."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cohort.core.source_location import Place
from cohort.data.files.columnar import hub_rows, parquet_rows
from cohort.data.files.csv_rows import csv_rows
from cohort.data.files.json_rows import json_document, json_lines
from cohort.data.files.sources import DataSource, GivenSource, HubSource, SplitName
from cohort.data.problems import BadRowError, ProblemKind, ProblemLog

__all__ = ["RawRow", "ReadSource", "content_digest", "read_source"]


@dataclass(frozen=True, kw_only=True)
class RawRow:
    """One object as it was read, with its file and line; parquet files and hub data sets count rows, not lines."""

    where: Place
    values: Mapping[str, Any]
    split: SplitName = "train"


@dataclass(frozen=True, kw_only=True)
class ReadSource:
    """The readable rows of one source, and how many others there were."""

    rows: list[RawRow]
    num_unreadable: int


def read_source(source: DataSource, *, split: SplitName, where: Place, log: ProblemLog) -> ReadSource:
    """Read every row of ``source``; unreadable rows and an empty source are noted in ``log``.

    Raises:
        InputError: an optional package (pyarrow, datasets) is missing, or the hub has no such data set.
    """
    shared: Counter[int] = Counter()
    if isinstance(source, HubSource):
        entries = iter(hub_rows(source, split=split, where=where, log=log))
    elif isinstance(source, GivenSource):
        entries = json_lines(source.rows.content)
    elif source.path.suffix.lower() == ".parquet":
        entries = iter(parquet_rows(source))
    else:
        reader = {".jsonl": json_lines, ".json": json_document, ".csv": csv_rows}[source.path.suffix.lower()]
        entries = reader(source.path.read_bytes())
        if source.path.suffix.lower() == ".json":
            entries = iter(whole := list(entries))
            shared = Counter(line for line, _ in whole)
    rows: list[RawRow] = []
    num_unreadable = 0
    for index, (line, value) in enumerate(entries):
        place = source.place(line)
        if shared[line] > 1:
            # a list on one line: its place in the list tells the row
            place = place.below(index)
        if isinstance(value, BadRowError):
            log.extend([value.at(place)])
            num_unreadable += 1
        else:
            rows.append(RawRow(where=place, values=value, split=split))
    if not rows and not num_unreadable:
        log.add(
            ProblemKind.INPUT,
            where=source.shown,
            found="no rows",
            allowed="at least one row",
            hint="Add rows to it, or name another file."
            if split == "train"
            else "Add rows to it, name another file, or leave it out.",
        )
    return ReadSource(rows=rows, num_unreadable=num_unreadable)


def content_digest(source: DataSource, *, rows: list[RawRow] | None = None) -> str:
    """Return SHA-256 (hex) of a file's bytes; of the rows' canonical JSON for a hub data set, which has no one file."""
    digest = hashlib.sha256()
    if isinstance(source, GivenSource):
        # as the file that a run keeps of them
        return hashlib.sha256(source.rows.content).hexdigest()
    if not isinstance(source, HubSource):
        with source.path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()
    for row in rows or ():
        digest.update(json.dumps(row.values, sort_keys=True, default=str).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
