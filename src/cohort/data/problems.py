"""What is wrong with rows: kinds, records, and the log that every stage writes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place, dotted

__all__ = ["LISTED_PROBLEMS", "BadRowError", "ProblemKind", "ProblemLog", "RowProblem", "capped"]

LISTED_PROBLEMS = 20
"""The most problems of one kind that an error lists; it counts the others."""


class ProblemKind(StrEnum):
    """Why a row, or the whole input, was noted.

    ``UNREADABLE``, ``MALFORMED`` and ``TEMPLATE`` rows obey ``on_bad_rows``; ``TOO_LONG`` rows obey ``on_long_rows``;
    ``INPUT`` always stops the run; the rest is information.
    """

    INPUT = "input"
    UNREADABLE = "unreadable"
    MALFORMED = "malformed"
    TEMPLATE = "template"
    TOO_LONG = "too_long"
    TRUNCATED = "truncated"
    SPLIT = "split"
    EMPTY_AFTER_MASKING = "empty_after_masking"
    DUPLICATE = "duplicate"
    IN_TRAIN_AND_VALIDATION = "in_train_and_validation"
    IN_TEST_AND_ANOTHER = "in_test_and_another"
    BORDER_INSIDE_TOKEN = "border_inside_token"
    VALIDATED_ON_TEST_SPLIT = "validated_on_test_split"


# up to this many rows of a file with the same problem are listed one by one
_MOST_ALIKE = 3
_MOST_SPANS = 10
BAD_ROW_KINDS = (ProblemKind.UNREADABLE, ProblemKind.MALFORMED, ProblemKind.TEMPLATE)


class BadRowError(Exception):
    """Raised while one row is parsed; the caller knows the line and turns it into a :class:`RowProblem`."""

    def __init__(self, *, found: str, allowed: str, hint: str, kind: ProblemKind = ProblemKind.MALFORMED) -> None:
        super().__init__(found)
        self.found, self.allowed, self.hint, self.kind = found, allowed, hint, kind

    def at(self, where: Place) -> RowProblem:
        problem = Problem(where=where, found=self.found, allowed=self.allowed, hint=self.hint)
        return RowProblem(kind=self.kind, problem=problem)


@dataclass(frozen=True, kw_only=True)
class RowProblem:
    """One note about one row (or, for ``INPUT``, about a file or a key)."""

    kind: ProblemKind
    problem: Problem


class ProblemLog:
    """Collects notes in the order they are found; one log per load."""

    def __init__(self) -> None:
        self._entries: list[RowProblem] = []

    def add(self, kind: ProblemKind, *, where: Place | str, found: str, allowed: str, hint: str) -> None:
        self.extend([RowProblem(kind=kind, problem=Problem(where=where, found=found, allowed=allowed, hint=hint))])

    def add_input(self, error: InputError) -> None:
        """Note the problems of an error that stops the run."""
        self.extend(RowProblem(kind=ProblemKind.INPUT, problem=problem) for problem in error.problems)

    def extend(self, entries: Iterable[RowProblem]) -> None:
        self._entries.extend(entries)

    @property
    def entries(self) -> tuple[RowProblem, ...]:
        return tuple(self._entries)

    def counts(self) -> dict[str, int]:
        """Return how many notes there are of each kind that occurs."""
        return dict(Counter(entry.kind.value for entry in self._entries))

    def of(self, *kinds: ProblemKind) -> list[Problem]:
        return [entry.problem for entry in self._entries if entry.kind in kinds]

    def stopping(self, *, bad_rows_stop: bool, long_rows_stop: bool, can_skip: bool = True) -> list[Problem]:
        """Return the problems that must stop the run under the user's rules.

        ``can_skip`` says whether ``on_bad_rows: skip`` would leave such rows out, which the hint then names.
        """
        kinds = [ProblemKind.INPUT]
        if bad_rows_stop:
            kinds += BAD_ROW_KINDS
        if long_rows_stop:
            kinds.append(ProblemKind.TOO_LONG)
        return _grouped([entry for entry in self._entries if entry.kind in kinds], can_skip=can_skip)


def _grouped(entries: Sequence[RowProblem], *, can_skip: bool) -> list[Problem]:
    """Return the problems, with those that many rows of a file have alike as one, at the place of the first."""
    groups: dict[Hashable, list[RowProblem]] = {}
    for number, entry in enumerate(entries):
        # what was found may differ from row to row (a column, a length); what to do about it is the same
        place = entry.problem.where
        alike = (entry.kind, place.file, place.key[:-1], entry.problem.allowed, entry.problem.hint)
        is_row = entry.kind is not ProblemKind.INPUT and _row_number(place) is not None
        groups.setdefault(alike if is_row else number, []).append(entry)
    problems: list[Problem] = []
    for group in groups.values():
        is_many = len(group) > _MOST_ALIKE
        problems += [_as_one(group, can_skip=can_skip)] if is_many else [entry.problem for entry in group]
    return problems


def _row_number(place: Place) -> int | None:
    """Return a row's line in its file, or its index among rows given from Python; None for a place of another kind."""
    last = place.key[-1] if place.key else None
    return place.line if place.line is not None else last if isinstance(last, int) else None


def _as_one(group: Sequence[RowProblem], *, can_skip: bool) -> Problem:
    first = group[0].problem
    rows = _spans([_row_number(entry.problem.where) or 0 for entry in group])
    skip = " To leave such rows out: dataset.on_bad_rows: skip." if can_skip and group[0].kind in BAD_ROW_KINDS else ""
    return Problem(
        where=f"{first.where.file}:{rows}" if first.where.line is not None else _row_key(first.where, rows),
        found=f"{first.found} (the first of {len(group)} such rows)",
        allowed=first.allowed,
        hint=first.hint + skip,
    )


def _row_key(where: Place, rows: str) -> str:
    source = f"{where.file}: " if where.file else ""
    return f"{source}{dotted(where.key[:-1])}[{rows}]"


def _spans(lines: Sequence[int]) -> str:
    """Return line numbers as ``3, 5-9 and 40 more``."""
    spans: list[list[int]] = []
    for line in lines:
        if spans and line == spans[-1][1] + 1:
            spans[-1][1] = line
        else:
            spans.append([line, line])
    shown = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans[:_MOST_SPANS])
    rest = sum(high - low + 1 for low, high in spans[_MOST_SPANS:])
    return f"{shown} and {rest} more" if rest else shown


def capped(problems: list[Problem], *, limit: int | None) -> list[Problem]:
    """Return at most ``limit`` problems and, if some are left out, one more that says how many."""
    if limit is None or len(problems) <= limit:
        return problems
    rest = problems[limit:]
    more = Problem(
        where=f"{rest[0].where} and after",
        found=f"{len(rest)} more problems like these",
        allowed="none",
        hint="Run `cohort check` to list them all.",
    )
    return [*problems[:limit], more]
