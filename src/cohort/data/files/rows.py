"""Reading rows: JSON lines, JSON and CSV files and hub data sets become objects that know their line."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.core.place import Place
from cohort.data.files.columnar import hub_rows, parquet_rows
from cohort.data.files.other_content import other_content, too_long_row
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
        entries = _json_lines(source.rows.content)
    elif source.path.suffix.lower() == ".parquet":
        entries = iter(parquet_rows(source))
    else:
        reader = {".jsonl": _json_lines, ".json": _json_document, ".csv": _csv_rows}[source.path.suffix.lower()]
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
            hint="Add rows to it, or leave it out.",
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


Entry = tuple[int, Mapping[str, Any] | BadRowError]


def _json_lines(data: bytes) -> Iterator[Entry]:
    data = data.removeprefix(b"\xef\xbb\xbf")
    if (other := other_content(data) or _document_in_lines(data)) is not None:
        yield 1, other
        return
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, _parsed(line)


def _document_in_lines(data: bytes) -> BadRowError | None:
    """Return the problem of a file that is one JSON document and not one object a line; None for any other file."""
    first = data.lstrip()[:1]
    # an object over several lines begins with a line that is not a whole object
    begins_object = first == b"{" and data.lstrip().partition(b"\n")[0].strip() in (b"{", b"{}")
    if first != b"[" and not begins_object:
        return None
    try:
        document = json.loads(data.decode("utf-8"))
    # rows with mistakes of their own are reported one by one
    except (ValueError, RecursionError):
        return None
    what = "one JSON array" if isinstance(document, list) else "one JSON object over several lines"
    return _of_file(found=what, allowed="one JSON object on each line", hint="Name the file .json.")


def _parsed(line: bytes) -> Mapping[str, Any] | BadRowError:
    if (too_long := too_long_row(len(line))) is not None:
        return too_long
    hint = "Write one whole JSON object on this line."
    if line.strip() in (b"[", b"{"):
        hint = "If this is one JSON document over many lines, name the file .json."
    elif line.rstrip().endswith(b"},"):
        hint = "Remove the comma after the object; if the file is one JSON array, name it .json."
    try:
        value = json.loads(line.decode("utf-8"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        return _not_utf8(line[error.start], column=error.start + 1)
    except _RepeatedKeyError as error:
        return _repeated(error)
    except json.JSONDecodeError as error:
        return _not_json(f"{error.msg}, column {error.colno}", hint=hint)
    except (ValueError, RecursionError) as error:
        return _not_json(str(error), hint=hint)
    return _as_object(value)


class _RepeatedKeyError(Exception):
    """An object has a key twice: readers disagree about which value counts."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedKeyError(next(name for place, name in enumerate(names) if name in names[:place]))
    return found


def _repeated(error: _RepeatedKeyError) -> BadRowError:
    return _unreadable(
        found=f"the key {str(error)!r} twice in one object",
        allowed="each key once",
        hint="Remove one of the two, or rename it.",
    )


def _of_file(*, found: str, allowed: str, hint: str) -> BadRowError:
    # skipping rows cannot help where the whole file is of another kind
    return BadRowError(kind=ProblemKind.INPUT, found=found, allowed=allowed, hint=hint)


def _unreadable(*, found: str, allowed: str, hint: str) -> BadRowError:
    return BadRowError(kind=ProblemKind.UNREADABLE, found=found, allowed=allowed, hint=hint)


def _as_object(value: Any) -> Mapping[str, Any] | BadRowError:
    if not isinstance(value, dict):
        return _unreadable(
            found=f"a JSON {_json_type(value)}",
            allowed='a JSON object such as {"prompt": "P", "completion": "C"}',
            hint="Wrap the value in an object with the key it belongs to.",
        )
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return _unreadable(
            found="half of a surrogate pair (\\ud800 to \\udfff)",
            allowed="text that can be written as UTF-8",
            hint="Remove the broken escape, usually the first half of a cut emoji.",
        )
    return value


def _json_type(value: Any) -> str:
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


def _not_utf8(byte: int, *, column: int) -> BadRowError:
    return _unreadable(
        found=f"the byte 0x{byte:02x} at place {column} of the line",
        allowed="UTF-8 text",
        hint="Save the file as UTF-8, from Windows-1252 for example: `iconv -f CP1252 -t UTF-8 FILE > NEW_FILE`.",
    )


def _not_json(reason: str, *, hint: str) -> BadRowError:
    return _unreadable(found=f"bad JSON ({reason})", allowed="one JSON object", hint=hint)


def _decoded_document(data: bytes) -> str | Entry:
    if (other := other_content(data)) is not None:
        return 1, other
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line_start = data.rfind(b"\n", 0, error.start) + 1
        line = data.count(b"\n", 0, error.start) + 1
        return line, _not_utf8(data[error.start], column=error.start - line_start + 1)


def _json_document(data: bytes) -> Iterator[Entry]:
    """Yield the rows of a list, or of the list ``data`` of an object, each with the line it starts on."""
    text = _decoded_document(data)
    if not isinstance(text, str):
        yield text
        return
    if not text.strip():
        return
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        hint = "Correct the JSON, or name the file .jsonl if it has one object a line."
        yield error.lineno, _not_json(f"{error.msg}, column {error.colno}", hint=hint)
        return
    except (ValueError, RecursionError) as error:
        yield 1, _not_json(str(error), hint="Correct the JSON.")
        return
    start = text.find("[")
    if isinstance(document, dict) and isinstance(document.get("data"), list):
        start = _start_of_member(text, "data")
    elif not isinstance(document, list):
        allowed = 'a list of objects, or {"data": [...]}'
        found = (
            f"a JSON {_json_type(document)}" if not isinstance(document, dict) else "an object without a list `data`"
        )
        yield (1, _unreadable(found=found, allowed=allowed, hint="Put the rows into a list."))
        return
    line, counted = 1, 0
    for place, value in _elements(text, start):
        line, counted = line + text.count("\n", counted, place), place
        yield line, value if isinstance(value, BadRowError) else _as_object(value)


def _skip(text: str, place: int, characters: str = " \t\r\n,") -> int:
    while text[place] in characters:
        place += 1
    return place


def _elements(text: str, start: int) -> Iterator[tuple[int, Any]]:
    """Yield (character offset, value) of the list that opens at ``start`` in text known to be valid JSON."""
    decoder, plain = json.JSONDecoder(object_pairs_hook=_unique), json.JSONDecoder()
    place = _skip(text, start + 1)
    while text[place] != "]":
        value: Any
        try:
            value, end = decoder.raw_decode(text, place)
        except _RepeatedKeyError as error:
            value, end = _repeated(error), plain.raw_decode(text, place)[1]
        yield place, value
        place = _skip(text, end)


def _start_of_member(text: str, name: str) -> int:
    decoder = json.JSONDecoder()
    place, start = _skip(text, text.find("{") + 1), 0
    while text[place] != "}":
        key, place = decoder.raw_decode(text, place)
        value_start = _skip(text, place, " \t\r\n:")
        _, end = decoder.raw_decode(text, value_start)
        if key == name:
            # no break: with a repeated key the last one counts, as in json.loads
            start = value_start
        place = _skip(text, end)
    return start


def _csv_rows(data: bytes) -> Iterator[Entry]:
    text = _decoded_document(data)
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
            _unreadable(
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
    return _of_file(found=f"two columns named {twice!r}", allowed="each name once in the header", hint=hint)


_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def _other_separator(header: list[str]) -> str | None:
    """Return the character that separates the names of a header of one field, as spreadsheets often write it."""
    # a file of one column, such as text, has none of them in its name
    return next((mark for mark in _SEPARATORS if len(header) == 1 and mark in header[0]), None)


def _not_commas(separator: str) -> BadRowError:
    python = f"import csv, sys; csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, delimiter={separator!r}))"
    return _of_file(
        found=f"a header separated by {_SEPARATORS[separator]}",
        allowed="comma-separated values with a header",
        hint=f'Convert it: `python -c "{python}" < FILE > NEW.csv`.',
    )


def _csv_object(header: list[str], cells: list[str]) -> Mapping[str, Any] | BadRowError:
    if (too_long := too_long_row(sum(map(len, cells)))) is not None:
        return too_long
    if len(cells) != len(header):
        return _unreadable(
            found=f"{len(cells)} fields",
            allowed=f"{len(header)} fields as in the header",
            hint="Quote fields that contain a comma or a line break.",
        )
    return dict(zip(header, cells, strict=True))
