"""Rows travel to the ranks once, also when others are equal to them."""

from __future__ import annotations

from cohort.ranks.commands import Rows
from cohort.ranks.sent_rows import SentRows
from tests.training.small_models import random_rows


def test_rows_are_sent_once_and_known_by_identity() -> None:
    sent: list[Rows] = []
    first, second, equal = random_rows(2), random_rows(3), random_rows(3)
    rows = SentRows(first, send=sent.append)
    assert rows.first is first
    assert [rows.number(each) for each in (first, second, equal, second)] == [0, 1, 2, 1]
    assert [(command.number, command.rows) for command in sent] == [(1, second), (2, equal)]


def test_rows_that_could_not_be_sent_are_sent_again() -> None:
    failures, rows = [1], random_rows(2)

    def send(command: Rows) -> None:
        if failures:
            failures.pop()
            raise OSError("gone")

    sent = SentRows(random_rows(1), send=send)
    try:
        sent.number(rows)
    except OSError:
        assert sent.number(rows) == 1
