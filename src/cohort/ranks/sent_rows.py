"""Rows that other ranks keep under numbers, so that each travels once."""

from __future__ import annotations

from collections.abc import Callable

from cohort.data.tokenised import TokenisedRows
from cohort.ranks.commands import Rows

__all__ = ["SentRows"]


class SentRows:
    """What the ranks of an executor have been sent."""

    def __init__(self, first: TokenisedRows, *, send: Callable[[Rows], object]) -> None:
        """Begin with the rows of the ranks' setup, number 0.

        Args:
            send: Sends rows to all ranks.
        """
        self._send = send
        # by identity, as rows of a task are one object; kept, so that no other object takes the number
        self._rows = [first]

    @property
    def first(self) -> TokenisedRows:
        """The rows of trials that come without rows of their own."""
        return self._rows[0]

    def number(self, rows: TokenisedRows) -> int:
        """Return the number under which the ranks keep these rows; new rows go to all of them."""
        for number, known in enumerate(self._rows):
            if known is rows:
                return number
        number = len(self._rows)
        self._send(Rows(number=number, rows=rows))
        self._rows.append(rows)
        return number
