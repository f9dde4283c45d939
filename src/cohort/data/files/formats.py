"""Recognising a file's format by its keys, and turning each row into a typed example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from cohort.core.source_location import Place, dotted
from cohort.data.examples import Example
from cohort.data.files.named_row import NamedRow
from cohort.data.files.parsing import parse_prompt, parse_row
from cohort.data.files.rows import RawRow
from cohort.data.files.sources import SplitName
from cohort.data.problems import BadRowError, ProblemKind, ProblemLog
from cohort.data.setting_refusals import template_fields
from cohort.data.settings import DatasetSettings, RowReading

__all__ = ["DataFormat", "ParsedRow", "detect_format", "guess_columns", "note_other_format", "parse_rows", "renamed"]


class DataFormat(StrEnum):
    """The layouts of a row; the value is the name used in the task file."""

    PREFERENCE = "preference"
    UNPAIRED_PREFERENCE = "unpaired_preference"
    MESSAGES = "messages"
    SHAREGPT = "sharegpt"
    ALPACA = "alpaca"
    PROMPT_COMPLETION = "prompt_completion"
    TEXT = "text"
    PROMPT = "prompt"

    @property
    def is_chat(self) -> bool:
        """Whether every row of the format is a conversation."""
        return self in (DataFormat.MESSAGES, DataFormat.SHAREGPT)


# the most specific first: files often hold a rendered copy as well (`text` in Alpaca, `messages` in preference sets)
_KEYS: tuple[tuple[DataFormat, tuple[str, ...]], ...] = (
    (DataFormat.PREFERENCE, ("preferred_completion", "non_preferred_completion")),
    (DataFormat.PREFERENCE, ("chosen", "rejected")),
    (DataFormat.MESSAGES, ("messages",)),
    (DataFormat.SHAREGPT, ("conversations",)),
    (DataFormat.ALPACA, ("instruction", "output")),
    (DataFormat.PROMPT_COMPLETION, ("prompt", "completion")),
    (DataFormat.TEXT, ("text",)),
)
# where an answer is of no use, whether a row has one or not
_ASKING_KEYS: tuple[tuple[DataFormat, tuple[str, ...]], ...] = (
    (DataFormat.PROMPT, ("prompt",)),
    (DataFormat.MESSAGES, ("messages",)),
    (DataFormat.SHAREGPT, ("conversations",)),
    (DataFormat.ALPACA, ("instruction",)),
)


# what data sets call the two sides, the likeliest first
_PROMPTS = ("prompt", "question", "query", "instruction", "problem", "source", "input", "user", "context")
_COMPLETIONS = ("completion", "answer", "response", "output", "target", "solution", "reply", "label", "assistant")
_OTHER_NAMES = {"preferred_completion": "preferred_output", "non_preferred_completion": "non_preferred_output"}

_TEMPLATE_FORMATS = (DataFormat.PROMPT_COMPLETION, DataFormat.ALPACA, DataFormat.PROMPT)


@dataclass(frozen=True, kw_only=True)
class ParsedRow:
    """One row's example, the file and line that it came from, and the row as its file has it."""

    where: Place
    example: Example
    split: SplitName = "train"
    columns: Mapping[str, Any] = field(default_factory=dict)


def detect_format(
    values: Mapping[str, Any], *, prompt_template: str | None = None, reads: RowReading = RowReading.ANSWERS
) -> DataFormat | None:
    """Return the most specific format whose keys ``values`` has (a None counts as absent); None if there is none.

    With a prompt template a row needs no ``prompt`` of its own. A ``label`` means something only where it is read.
    """
    return next(iter(_fitting(values, prompt_template=prompt_template, reads=reads)), None)


def _fitting(values: Mapping[str, Any], *, prompt_template: str | None, reads: RowReading) -> list[DataFormat]:
    present = {name for name, value in values.items() if value is not None}
    if prompt_template is not None:
        present.add("prompt")
    return [data_format for data_format, keys in _known(reads) if present.issuperset(keys)]


def _known(reads: RowReading) -> tuple[tuple[DataFormat, tuple[str, ...]], ...]:
    """Return the formats to look for; an answer without its label is a mistake where labels are read."""
    if reads is RowReading.PROMPTS:
        return _ASKING_KEYS
    if reads is not RowReading.LABELS:
        return _KEYS
    return tuple(
        (DataFormat.UNPAIRED_PREFERENCE, (*keys, "label")) if entry is DataFormat.PROMPT_COMPLETION else (entry, keys)
        for entry, keys in _KEYS
    )


def renamed(values: Mapping[str, Any], *, columns: Mapping[str, str]) -> NamedRow:
    """Return the row under our names. A renamed column is no longer seen under its old name."""
    sources = set(columns.values())
    row = {name: value for name, value in values.items() if name not in sources}
    row.update({name: values[source] for name, source in columns.items() if source in values})
    # as OpenAI's service writes them
    written = {name: other for name, other in _OTHER_NAMES.items() if other in row and name not in row}
    row.update({name: row.pop(other) for name, other in written.items()})
    return NamedRow(row, names={**written, **columns})


def parse_rows(
    rows: Sequence[RawRow], *, settings: DatasetSettings, log: ProblemLog
) -> tuple[DataFormat | None, list[ParsedRow]]:
    """Return the format of ``rows`` and an example for each good one; everything else is noted in ``log``.

    The first row that is recognised sets the format of all; a row of another format stops the run, whatever
    ``on_bad_rows`` says, since it is rarely the only one.
    """
    named = [(row, renamed(row.values, columns=settings.columns)) for row in rows]
    missing = _note_missing_columns(rows, settings=settings, log=log)
    if settings.format != "auto":
        chosen = DataFormat(settings.format)
    else:
        detected = [
            (row, values, data_format)
            for row, values in named
            if (data_format := detect_format(values, prompt_template=settings.prompt_template, reads=settings.reads))
            is not None
        ]
        if not detected:
            if rows and not missing:
                _note_unknown(rows[0], settings=settings, log=log)
            return None, []
        first, _, chosen = detected[0]
        others = [
            (row, entry)
            for row, values, entry in detected
            if chosen not in _fitting(values, prompt_template=settings.prompt_template, reads=settings.reads)
        ]
        if others:
            _note_mixed(others, first=first, chosen=chosen, log=log)
            return chosen, []
    if settings.prompt_template is not None and chosen not in _TEMPLATE_FORMATS:
        log.add(
            ProblemKind.INPUT,
            where=settings.key("prompt_template"),
            found=f"a prompt template for rows in the {chosen.value} format",
            allowed="a prompt template with prompt_completion or alpaca rows",
            hint="Remove prompt_template, or map the columns: {completion: answer}.",
        )
        return chosen, []
    # named once: as a problem of each row it would ask to change the data where the template has the mistake
    if _note_missing_fields(rows, settings=settings, log=log):
        return chosen, []
    parsed = []
    parse = parse_prompt if settings.reads is RowReading.PROMPTS else parse_row
    for row, values in named:
        try:
            example = parse(values, original=row.values, data_format=chosen.value, template=settings.prompt_template)
        except BadRowError as problem:
            log.extend([problem.at(row.where)])
        else:
            parsed.append(ParsedRow(where=row.where, example=example, split=row.split, columns=row.values))
    return chosen, parsed


def note_other_format(rows: Sequence[RawRow], *, settings: DatasetSettings, log: ProblemLog) -> bool:
    """Note that every row has the keys of one format, and none those of the format that the task names; return it."""
    if settings.format == "auto" or not rows:
        return False
    # a misspelt column is the cause, and is noted by its name
    if not all(any(source in row.values for row in rows) for source in settings.columns.values()):
        return False
    chosen = DataFormat(settings.format)
    fitting = [
        _fitting(
            renamed(row.values, columns=settings.columns),
            prompt_template=settings.prompt_template,
            reads=settings.reads,
        )
        for row in rows
    ]
    found = {kinds[0] for kinds in fitting if kinds}
    if len(found) != 1 or not all(kinds and chosen not in kinds for kinds in fitting):
        return False
    # one cause, which a problem of each row would hide: it would ask to change the data
    (other,) = found
    log.add(
        ProblemKind.INPUT,
        where=settings.key("format"),
        found=f"{chosen.value}, but the rows have the keys of {other.value}",
        allowed=f"{other.value}, or rows with the keys of {chosen.value}",
        hint=f"Write format: {other.value}, or give other rows.",
    )
    return True


def _note_missing_columns(rows: Sequence[RawRow], *, settings: DatasetSettings, log: ProblemLog) -> bool:
    missing = False
    for name, source in settings.columns.items():
        if rows and not any(source in row.values for row in rows):
            log.add(
                ProblemKind.INPUT,
                where=settings.key("columns", name),
                found=f"{source!r}, a column no row has",
                allowed=", ".join(rows[0].values) or "the columns of the file",
                hint="Name a column of the file.",
            )
            missing = True
    return missing


def _note_missing_fields(rows: Sequence[RawRow], *, settings: DatasetSettings, log: ProblemLog) -> bool:
    # a template may use our names for mapped columns as well
    known = {name for row in rows for name in row.values}.union(settings.columns)
    fields = () if settings.prompt_template is None else template_fields(settings.prompt_template)
    missing = [name for name in fields if name not in known] if rows else []
    for name in missing:
        near = get_close_matches(name, known, n=1)
        log.add(
            ProblemKind.INPUT,
            where=settings.key("prompt_template"),
            found=f"{{{name}}}, a column no row has",
            allowed=", ".join(rows[0].values) or "the columns of the file",
            hint=f"Did you mean {{{near[0]}}}?" if near else "Name a column of the file.",
        )
    return bool(missing)


def guess_columns(names: Iterable[str]) -> dict[str, str] | None:
    """Return which columns seem to hold prompt and completion; None where none is called like one of them."""
    found = {name.strip().lower(): name for name in names}
    prompt = next((found[name] for name in _PROMPTS if name in found), None)
    completion = next((found[name] for name in _COMPLETIONS if name in found), None)
    if prompt is None or completion is None:
        return None
    return {ours: name for ours, name in (("prompt", prompt), ("completion", completion)) if ours != name}


def _half_of_a_pair(values: Mapping[str, Any], *, reads: RowReading) -> tuple[str, str] | None:
    """Return the key that is there and the one that is not, of the most specific format with one of each."""
    for _, keys in _known(reads):
        there = [name for name in keys if values.get(name) is not None]
        if len(keys) == 2 and len(there) == 1:
            return there[0], keys[1] if there[0] == keys[0] else keys[0]
    return None


def _note_unknown(row: RawRow, *, settings: DatasetSettings, log: ProblemLog) -> None:
    columns = dotted(settings.key("columns").key)
    guessed = guess_columns(name for name, value in row.values.items() if value is not None)
    shown = guessed or {"prompt": "question", "completion": "answer"}
    mapped = ", ".join(f"{ours}: {name}" for ours, name in shown.items())
    hint = f"Map the file's columns{': write' if guessed else ', e.g.'} {columns}: {{{mapped}}}."
    if detect_format(dict.fromkeys(row.values, "")) is not None:
        hint = "Fill in the values that are null, or remove the rows."
    elif guessed is None and (half := _half_of_a_pair(row.values, reads=settings.reads)) is not None:
        there, absent = half
        hint = f"There is {there!r} without {absent!r}: add it, or write {columns}: {{{absent}: NAME_OF_ITS_COLUMN}}."
    elif guessed is None and row.where.file.lower().endswith(".csv"):
        # its first line may have been a row like the others
        hint = f"{hint[:-1]}; if the file has no header, write one as its first line."
    log.add(
        ProblemKind.INPUT,
        where=row.where,
        # a null counts as absent, so its name alone would look right
        found=f"the keys {', '.join(k if v is not None else f'{k} (null)' for k, v in row.values.items()) or '(none)'}",
        allowed="; ".join(f"{' + '.join(keys)} ({name.value})" for name, keys in _known(settings.reads)),
        hint=hint,
    )


def _note_mixed(
    others: Sequence[tuple[RawRow, DataFormat]], *, first: RawRow, chosen: DataFormat, log: ProblemLog
) -> None:
    row, data_format = others[0]
    more = f" (and {len(others) - 1} more rows)" if len(others) > 1 else ""
    log.add(
        ProblemKind.INPUT,
        where=row.where,
        found=f"a row in the {data_format.value} format{more}",
        allowed=f"{chosen.value} as in {first.where}: one format for all rows",
        hint="Split the file by format, or convert the rows to one format.",
    )
