"""Notes about rows are kept in order; the user's rules decide which of them stop a run."""

from __future__ import annotations

import pytest

from cohort.core.errors import Problem
from cohort.core.source_location import Place
from cohort.data.problems import BadRowError, ProblemKind, ProblemLog, capped


def log_of(*kinds: ProblemKind) -> ProblemLog:
    log = ProblemLog()
    for line, kind in enumerate(kinds, start=1):
        log.extend([BadRowError(kind=kind, found="f", allowed="a", hint="h").at(Place(file="rows", line=line))])
    return log


@pytest.mark.parametrize(
    ("bad", "long", "lines"),
    [(True, True, [1, 2, 3, 4]), (True, False, [1, 2, 4]), (False, True, [3, 4]), (False, False, [4])],
)
def test_what_stops_a_run(bad: bool, long: bool, lines: list[int]) -> None:
    bad_rows = (ProblemKind.MALFORMED, ProblemKind.TEMPLATE)
    found = log_of(*bad_rows, ProblemKind.TOO_LONG, ProblemKind.INPUT, ProblemKind.DUPLICATE).stopping(
        bad_rows_stop=bad, long_rows_stop=long
    )
    assert [str(problem.where) for problem in found] == [f"rows:{line}" for line in lines]


def test_counts_are_by_kind() -> None:
    log = log_of(ProblemKind.DUPLICATE, ProblemKind.TRUNCATED, ProblemKind.DUPLICATE)
    assert log.counts() == {"duplicate": 2, "truncated": 1}
    assert len(log.of(ProblemKind.DUPLICATE)) == 2


def test_a_long_list_ends_with_how_many_more_there_are() -> None:
    problems = [Problem(where=f"rows:{line}", found="f", allowed="a", hint="h") for line in range(1, 6)]
    assert capped(problems, limit=None) == capped(problems, limit=5) == problems
    *first, more = capped(problems, limit=2)
    assert first == problems[:2]
    assert (str(more.where), more.found) == ("rows:3 and after", "3 more problems like these")
