"""All sources of a data set -> examples of one format, with every problem of every file in one log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cohort.core.errors import InputError
from cohort.data.examples import is_conversation
from cohort.data.files.formats import DataFormat, ParsedRow, note_other_format, parse_rows
from cohort.data.files.rows import RawRow, content_digest, read_source
from cohort.data.files.sources import SPLITS, DataSource, GivenSource, HubSource, SplitName, resolve_sources
from cohort.data.problems import ProblemKind, ProblemLog, capped
from cohort.data.settings import DatasetSettings

__all__ = [
    "InputSource",
    "ParsedDataset",
    "are_sources_local",
    "check_examples",
    "find_sources",
    "raise_stopping",
    "read_examples",
]


@dataclass(frozen=True, kw_only=True)
class InputSource:
    """One source to read.

    Attributes:
        split: What its rows are for.
        digest: SHA-256 of its content (hex).
        rows: Its rows where they had to be read for the digest (hub data sets), else None.
        number: Which entry of its split names it, from 0.
    """

    split: SplitName
    source: DataSource
    digest: str
    rows: Sequence[RawRow] | None = None
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class ParsedDataset:
    """The good rows of each split. ``validation`` is empty where a share of the training rows is asked for.

    ``rows_read`` counts the rows of the files of each split, those that are not good included.
    """

    format: DataFormat | None
    is_chat: bool
    train: list[ParsedRow]
    validation: list[ParsedRow]
    test: list[ParsedRow]
    rows_read: Mapping[SplitName, int]


def are_sources_local(settings: DatasetSettings) -> bool:
    """Return whether a data set is read without the hub; a local file that is missing is none of the hub's."""
    sources = (source for _, _, source in _resolved(settings, log=ProblemLog()))
    return not any(isinstance(source, HubSource) for source in sources)


def find_sources(settings: DatasetSettings, *, log: ProblemLog) -> list[InputSource]:
    """Return every source of the data set with the digest of its content; what is missing is noted in ``log``.

    A data set of the hub is downloaded for it.
    """
    found = []
    for split, number, source in _resolved(settings, log=log):
        where, is_hub = settings.key(split), isinstance(source, HubSource)
        try:
            rows = read_source(source, split=split, where=where, log=log).rows if is_hub else None
            digest = content_digest(source, rows=rows)
        except InputError as error:
            log.add_input(error)
        except OSError as error:
            _note_os_error(error, shown=source.shown, log=log)
        else:
            found.append(InputSource(split=split, source=source, digest=digest, rows=rows, number=number))
    return found


def _resolved(settings: DatasetSettings, *, log: ProblemLog) -> Iterator[tuple[SplitName, int, DataSource]]:
    """Yield what each split reads, and which of its entries names it; what is missing is noted in ``log``."""
    for split in SPLITS:
        where, written = settings.key(split), getattr(settings, split)
        # a share of the training rows has no files, and a task may have no test rows
        if written is None or isinstance(written, int | float):
            continue
        if (given := settings.given.get(split)) is not None:
            yield split, 0, GivenSource(rows=given, where=where)
            continue
        base = settings.base_directory
        entries = [written] if isinstance(written, str | Path) else [[entry] for entry in written] or [[]]
        for number, entry in enumerate(entries):
            for source in resolve_sources(entry, split=split, base_directory=base, where=where, log=log):
                yield split, number, source


def read_examples(sources: Sequence[InputSource], *, settings: DatasetSettings, log: ProblemLog) -> ParsedDataset:
    """Return the examples of ``sources``; every row that has a problem is noted in ``log`` and left out."""
    rows: dict[SplitName, list[RawRow]] = {split: [] for split in SPLITS}
    rows_read: dict[SplitName, int] = dict.fromkeys(SPLITS, 0)
    for entry in sources:
        if entry.rows is not None:
            read, unreadable = list(entry.rows), 0
        else:
            try:
                result = read_source(entry.source, split=entry.split, where=settings.key(entry.split), log=log)
            except InputError as error:
                log.add_input(error)
                continue
            read, unreadable = result.rows, result.num_unreadable
        rows[entry.split].extend(read)
        rows_read[entry.split] += len(read) + unreadable
    every = [row for split in SPLITS for row in rows[split]]
    is_other = note_other_format(every, settings=settings, log=log)
    data_format, parsed = (None, []) if is_other else parse_rows(every, settings=settings, log=log)
    is_chat = _note_mixed_rendering(parsed, log=log)
    return ParsedDataset(
        format=data_format,
        is_chat=is_chat,
        train=[row for row in parsed if row.split == "train"],
        validation=[row for row in parsed if row.split == "validation"],
        test=[row for row in parsed if row.split == "test"],
        rows_read=rows_read,
    )


def check_examples(settings: DatasetSettings, *, max_problems: int | None, can_skip: bool) -> None:
    """Read a data set as far as that needs no tokenizer; the arguments are those of :func:`raise_stopping`.

    Raises:
        InputError: every problem of its files and rows that is known without one.
    """
    log = ProblemLog()
    read_examples(find_sources(settings, log=log), settings=settings, log=log)
    raise_stopping(log, settings=settings, max_problems=max_problems, can_skip=can_skip)


def raise_stopping(log: ProblemLog, *, settings: DatasetSettings, max_problems: int | None, can_skip: bool) -> None:
    """Raise the problems that stop a run under the user's rules, if there are any.

    Args:
        log: What was noted so far.
        max_problems: How many to list before saying how many more there are; None lists all.
        can_skip: Whether there is a task file in which ``on_bad_rows: skip`` can be written.

    Raises:
        InputError: there are some.
    """
    problems = log.stopping(
        bad_rows_stop=settings.on_bad_rows == "error",
        long_rows_stop=settings.on_long_rows == "error",
        can_skip=can_skip,
    )
    if problems:
        raise InputError(capped(problems, limit=max_problems))


def _note_mixed_rendering(parsed: Sequence[ParsedRow], *, log: ProblemLog) -> bool:
    """Return whether the rows are conversations; note a prompt and completion in another form than the first row's."""
    if not parsed:
        return False
    is_chat = is_conversation(parsed[0].example)
    other = next((row for row in parsed if is_conversation(row.example) is not is_chat), None)
    if other is not None:
        kinds = ("text", "messages") if is_chat else ("messages", "text")
        log.add(
            ProblemKind.INPUT,
            where=other.where,
            found=f"prompt and completion as {kinds[0]}",
            allowed=f"{kinds[1]} as in {parsed[0].where}: one form for all rows",
            hint="Write every row's prompt and completion in the same form.",
        )
    return is_chat


def _note_os_error(error: OSError, *, shown: str, log: ProblemLog) -> None:
    log.add(
        ProblemKind.INPUT,
        where=shown,
        found=f"a file that cannot be read ({error.strerror})",
        allowed="a readable file",
        hint="Check its permissions.",
    )
