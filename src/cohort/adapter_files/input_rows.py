"""Rows of a file that a user names on the command line: prompts to answer, or rows to measure on."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.core.unusual_path import unusual_path
from cohort.data.files.rows import RawRow, read_source
from cohort.data.files.sources import READABLE_SUFFIXES, SourceFile
from cohort.data.problems import LISTED_PROBLEMS, ProblemKind, ProblemLog, capped

__all__ = ["find_source", "raise_problems", "read_rows"]


def find_source(path: Path, *, option: str) -> SourceFile:
    """Return the file that ``option`` names.

    Raises:
        InputError: it does not exist, or is of a kind that is not read.
    """
    allowed = f"a file ending in {', '.join(READABLE_SUFFIXES)}"
    where = Place(option=f"command line {option}")
    expanded = path.expanduser()
    if (unusual := unusual_path(expanded)) is not None:
        found = f"{str(path)!r:.80}, {unusual.found}"
        raise InputError(Problem(where=where, found=found, allowed=allowed, hint=unusual.hint))
    if expanded.is_dir():
        hint = "Name one file in it."
        raise InputError(Problem(where=where, found=f"the directory {str(path)!r}", allowed=allowed, hint=hint))
    if not expanded.exists():
        siblings = [entry.name for entry in expanded.parent.iterdir()] if expanded.parent.is_dir() else []
        near = get_close_matches(expanded.name, siblings, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else "Check the path."
        found = f"{str(path)!r}, which does not exist"
        raise InputError(Problem(where=where, found=found, allowed=allowed, hint=hint))
    if expanded.suffix.lower() not in READABLE_SUFFIXES:
        hint = "Convert the file to JSON lines, one object a line, and name it .jsonl."
        raise InputError(Problem(where=where, found=repr(str(path)), allowed=allowed, hint=hint))
    return SourceFile(path=expanded, shown=str(path))


def read_rows(source: SourceFile, *, option: str) -> list[RawRow]:
    """Return all rows of ``source``.

    Raises:
        InputError: a row cannot be read, the file cannot, or it has no rows; lists them.
    """
    log = ProblemLog()
    try:
        read = read_source(source, split="train", where=Place(option=f"command line {option}"), log=log)
    except OSError as error:
        raise InputError(
            Problem(
                where=source.shown,
                found=f"a file that cannot be read ({error.strerror})",
                allowed="a readable file",
                hint="Check its permissions.",
            )
        ) from error
    raise_problems(log.of(ProblemKind.INPUT, ProblemKind.UNREADABLE))
    return read.rows


def raise_problems(problems: list[Problem]) -> None:
    """Raise the first problems, and say how many more there are; return if there are none.

    Raises:
        InputError: there are problems.
    """
    if problems:
        shown = capped(problems, limit=LISTED_PROBLEMS)
        if len(shown) < len(problems):
            # there is no command that lists the problems of a file that no task names
            last = shown[-1]
            shown[-1] = Problem(
                where=last.where, found=last.found, allowed=last.allowed, hint="Correct these, then try again."
            )
        raise InputError(shown)
