"""YAML 1.2 with the line of every key (``1e-5`` is a number, ``on`` and ``no`` are words), so that messages name it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import KeyPath, Place

__all__ = ["TaskOrigin", "YamlDocument", "parse_yaml", "parse_yaml_value", "with_spaced_colon"]

_STANDARD = "tag:yaml.org,2002:"
_CONSTRUCTED = {_STANDARD + name for name in ("int", "float", "bool", "null")}
# dates and merge keys stay the text that was written: no key of a task is a date
_TEXT = {_STANDARD + name for name in ("str", "timestamp", "merge", "value")}
_COLON_ALLOWED = "`key: value`, with a space behind the colon"
# a key with its value right behind the colon; what begins with slashes is an address
_UNSPACED = re.compile(r"([A-Za-z_]\w*):(?!//)(\S.*)", re.DOTALL)
_UNSPACED_IN_LINE = re.compile(r"(?:^\s*|[{,]\s*)([A-Za-z_]\w*):(?!//)([^\s:,}]+)")


@dataclass(frozen=True, kw_only=True)
class YamlDocument:
    """A parsed document.

    Attributes:
        data: Plain dicts, lists and scalars.
        lines: Line of every key and list entry by its path, counted from 1.
    """

    data: Any
    lines: Mapping[KeyPath, int]


class _Reader:
    """Turns composed nodes into plain values, noting lines and problems on the way."""

    def __init__(self, yaml: YAML, where: Place) -> None:
        self.yaml = yaml
        self.where = where
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []

    def value(self, node: Node, path: KeyPath) -> Any:
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            # entries have lines of their own: long lists of files or values are written one per line
            for index, entry in enumerate(node.value):
                self.lines[(*path, index)] = entry.start_mark.line + 1
            return [self.value(entry, (*path, index)) for index, entry in enumerate(node.value)]
        assert isinstance(node, ScalarNode), "a YAML node is a mapping, a sequence or a scalar"
        return self._scalar(node)

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                self._note(line, "a key that is a list or a mapping", "plain words as keys", "Write `key: value`.")
                continue
            # {a:b} is one key with no value to YAML, and nothing that was meant
            spaced = with_spaced_colon(key) if node.flow_style and key_node.style is None else None
            if spaced is not None and _is_nothing(value_node):
                self._note(line, f"{key!r}, one key without a value", _COLON_ALLOWED, f"Write {{{spaced}}}.")
                continue
            # a YAML loader would let the last one win without a word
            if key in result:
                first = self.lines[(*path, key)]
                self._note(
                    line,
                    f"{key!r} a second time (first on line {first})",
                    "each key once",
                    "Remove one of the two lines.",
                )
                continue
            self.lines[(*path, key)] = line
            result[key] = self.value(value_node, (*path, key))
        return result

    def _scalar(self, node: ScalarNode) -> Any:
        tag = str(node.tag)
        if tag in _CONSTRUCTED:
            return self.yaml.constructor.construct_object(node, deep=True)
        if tag not in _TEXT:
            self._note(node.start_mark.line + 1, f"the tag {tag}", "plain values", "Remove the tag.")
        return str(node.value)

    def _note(self, line: int, found: str, allowed: str, hint: str) -> None:
        self.problems.append(Problem(where=self.where.at_line(line), found=found, allowed=allowed, hint=hint))


def _is_nothing(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.style is None and not node.value


def with_spaced_colon(text: str) -> str | None:
    """Return ``train:rows.jsonl`` as ``train: rows.jsonl``; None for text that is no key with a value behind it."""
    return _UNSPACED.sub(r"\1: \2", text) if _UNSPACED.match(text) else None


def _mistyped(lines: Sequence[str], stop: int) -> tuple[int, str]:
    """Return the line to correct, from 1, and how, where reading stopped at line ``stop``: there or just before."""
    for number in (stop, stop - 1):
        line = lines[number - 1] if 0 < number <= len(lines) else ""
        if "\t" in line[: len(line) - len(line.lstrip())]:
            return number, "Indent with spaces: the line begins with a tab."
        if (unspaced := _UNSPACED_IN_LINE.search(line)) is not None:
            return number, f"Write a space behind the colon: `{unspaced[1]}: {unspaced[2]}`."
    return stop, "Correct the line; look for a missing colon, quote or bracket and for tabs there or just before."


def _syntax_problem(error: YAMLError, where: Place, text: str) -> Problem:
    line, what = 0, str(error).splitlines()[0]
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = 0 if mark is None else mark.line + 1
        what = " ".join(str(part) for part in (error.context, error.problem) if part)
    line, hint = _mistyped(text.splitlines(), line)
    return Problem(
        where=where.at_line(line) if line else where,
        found=f"text that is not YAML ({what})",
        allowed="YAML 1.2: `key: value` lines, indented with spaces",
        hint=hint,
    )


def parse_yaml(text: str, *, where: Place) -> YamlDocument | None:
    """Parse one document; None when the text holds nothing but comments.

    Raises:
        InputError: the text is not YAML, or holds several documents, a key twice or a tag.
    """
    # pure: the C loader reads YAML 1.1, in which `no` is false and 1e-5 is text
    yaml = YAML(typ="safe", pure=True)
    try:
        # composed and not loaded: nodes know their lines, and no tag can construct an object
        node = yaml.compose(text)
    except YAMLError as error:
        raise InputError(_syntax_problem(error, where, text)) from None
    # only comments: the caller says what is missing
    if node is None:
        return None
    reader = _Reader(yaml, where)
    data = reader.value(node, ())
    if reader.problems:
        raise InputError(reader.problems)
    return YamlDocument(data=data, lines=reader.lines)


def parse_yaml_value(text: str, *, where: Place) -> Any:
    """Parse a value typed on the command line (``3e-4``, ``[8, 16]``, ``none``); empty text is the empty string.

    Raises:
        InputError: the text is not a YAML value.
    """
    document = parse_yaml(text, where=where)
    return "" if document is None else document.data


@dataclass(frozen=True, kw_only=True)
class TaskOrigin:
    """A task file's name, its lines, and what the command line set.

    Attributes:
        name: How messages name the file, as the user typed it.
        lines: Line by path, from 1.
        overrides: Option by path, e.g. ``--training.seed``.
    """

    name: str
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    overrides: Mapping[KeyPath, str] = field(default_factory=dict)

    def where(self, path: KeyPath | str) -> Place:
        """Return the place of a key, ``task.yaml:12: search.space.r``, or ``command line --training.seed``.

        A key that is not there has the line of its section.
        """
        parts: KeyPath = tuple(path.split(".")) if isinstance(path, str) else path
        # the option first: it replaced what the file says
        for length in range(len(parts), 0, -1):
            if parts[:length] in self.overrides:
                return Place(option=f"command line {self.overrides[parts[:length]]}", key=parts[length:])
        return Place(file=self.name, line=self.line(parts), key=parts)

    def line(self, path: KeyPath) -> int | None:
        """Return the line of the key, or of the nearest section around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None
