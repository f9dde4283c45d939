"""Rows of CSV files, with the line that each starts on."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

from cohort.core.units import counted
from cohort.data.files.bad_rows import Entry, decoded_document, of_file, unreadable
from cohort.data.files.other_content import too_long_row
from cohort.data.problems import BadRowError

__all__ = ["csv_rows"]

_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def csv_rows(data: bytes) -> Iterator[Entry]:
    """Yield the rows of a file with a header, as objects by its names."""
    text = decoded_document(data)
    if not isinstance(text, str):
        yield text
        return
    former_limit = csv.field_size_limit(2**31 - 1)
    header: list[str] | None = None
    line = 1
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        for cells in reader:
            is_blank = len(cells) < 2 and not "".join(cells).strip()
            if header is None and not is_blank:
                if (separator := _other_separator(cells)) is not None:
                    yield line, _not_commas(separator)
                    return
                if (twice := _named_twice(cells)) is not None:
                    yield line, twice
                    return
                header = cells
            elif header is not None and not is_blank:
                yield line, _csv_object(header, cells)
            line = reader.line_num + 1
    except csv.Error as error:
        yield (
            line,
            unreadable(
                found=f"bad CSV ({error}) in the row that starts here",
                allowed="comma-separated values with a header",
                hint="Close the quotation mark; a quote inside a quoted field is doubled.",
            ),
        )
    finally:
        csv.field_size_limit(former_limit)


def _named_twice(header: list[str]) -> BadRowError | None:
    """Return the problem of a header in which two columns have one name: only one of them could be read."""
    # columns without a name are spreadsheets' leftovers, which nothing can ask for
    twice = next((name for place, name in enumerate(header) if name.strip() and name in header[:place]), None)
    if twice is None:
        return None
    hint = "Rename one of the two columns, or remove it."
    return of_file(found=f"two columns named {twice!r}", allowed="each name once in the header", hint=hint)


def _other_separator(header: list[str]) -> str | None:
    """Return the character that separates the names of a header of one field, as spreadsheets often write it."""
    # a file of one column, such as text, has none of them in its name
    return next((mark for mark in _SEPARATORS if len(header) == 1 and mark in header[0]), None)


def _not_commas(separator: str) -> BadRowError:
    python = f"import csv, sys; csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, delimiter={separator!r}))"
    return of_file(
        found=f"a header separated by {_SEPARATORS[separator]}",
        allowed="comma-separated values with a header",
        hint=f'Convert it: `python -c "{python}" < FILE > NEW.csv`.',
    )


def _csv_object(header: list[str], cells: list[str]) -> Mapping[str, Any] | BadRowError:
    if (too_long := too_long_row(sum(map(len, cells)))) is not None:
        return too_long
    if len(cells) != len(header):
        return unreadable(
            found=counted(len(cells), "field"),
            allowed=f"{counted(len(header), 'field')} as in the header",
            hint="Quote fields that contain a comma or a line break.",
        )
    return dict(zip(header, cells, strict=True))
