"""Rows of JSON lines and JSON documents, with the line that each starts on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cohort.data.files.bad_rows import Entry, decoded_document, not_utf8, of_file, unreadable
from cohort.data.files.other_content import other_content, too_long_row
from cohort.data.problems import BadRowError

__all__ = ["json_document", "json_lines"]


def json_lines(data: bytes) -> Iterator[Entry]:
    """Yield the objects of a file that has one on each line."""
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
    return of_file(found=what, allowed="one JSON object on each line", hint="Name the file .json.")


def _parsed(line: bytes) -> Mapping[str, Any] | BadRowError:
    if (too_long := too_long_row(len(line))) is not None:
        return too_long
    hint = "Write one whole JSON object on this line."
    if b"\r{" in line or b'\r"' in line:
        hint = "End lines in line feeds; these end in carriage returns alone: `tr '\\r' '\\n' < FILE > NEW_FILE`."
    elif line.lstrip().startswith((b"{'", b"[{'")):
        hint = "Write double quotes, as JSON has them: in Python json.dumps(row), not str(row)."
    elif line.strip() in (b"[", b"{"):
        hint = "If this is one JSON document over many lines, name the file .json."
    elif line.rstrip().endswith(b"},"):
        hint = "Remove the comma after the object; if the file is one JSON array, name it .json."
    try:
        value = json.loads(line.decode("utf-8"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        return not_utf8(line[error.start], column=error.start + 1)
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
    return unreadable(
        found=f"the key {str(error)!r} twice in one object",
        allowed="each key once",
        hint="Remove one of the two, or rename it.",
    )


def _as_object(value: Any) -> Mapping[str, Any] | BadRowError:
    if not isinstance(value, dict):
        return unreadable(
            found=f"a JSON {_json_type(value)}",
            allowed='a JSON object such as {"prompt": "P", "completion": "C"}',
            hint="Wrap the value in an object with the key it belongs to.",
        )
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return unreadable(
            found="half of a surrogate pair (\\ud800 to \\udfff)",
            allowed="text that can be written as UTF-8",
            hint="Remove the broken escape, usually the first half of a cut emoji.",
        )
    return value


def _json_type(value: Any) -> str:
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


def _not_json(reason: str, *, hint: str) -> BadRowError:
    return unreadable(found=f"bad JSON ({reason})", allowed="one JSON object", hint=hint)


def json_document(data: bytes) -> Iterator[Entry]:
    """Yield the rows of a list, or of the list ``data`` of an object, each with the line it starts on."""
    text = decoded_document(data)
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
        lists = (
            [key for key, value in document.items() if isinstance(value, list)] if isinstance(document, dict) else []
        )
        hint = f"Rename {lists[0]!r} to 'data', or write its list alone." if lists else "Put the rows into a list."
        yield (1, unreadable(found=found, allowed=allowed, hint=hint))
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
