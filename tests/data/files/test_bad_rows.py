"""A document is text, or has one problem at the line where it stops being text."""

from __future__ import annotations

import pytest

from cohort.data.files.bad_rows import decoded_document, of_file, unreadable
from cohort.data.problems import BadRowError, ProblemKind


@pytest.mark.parametrize("text", ["", "é\n1", "\ufeffa"])
def test_a_document_is_its_text_without_the_mark_at_its_start(text: str) -> None:
    assert decoded_document(text.encode()) == text.removeprefix("\ufeff")


@pytest.mark.parametrize(("before", "line", "column"), [(b"", 1, 1), (b"ab", 1, 3), (b"a\n\nbcd", 3, 4)])
def test_a_byte_that_is_no_utf8_has_its_line_and_place(before: bytes, line: int, column: int) -> None:
    found = decoded_document(before + b"\xff rest")
    assert isinstance(found, tuple)
    assert found[0] == line
    assert isinstance(found[1], BadRowError)
    assert f"the byte 0xff at place {column} of the line" in found[1].found


def test_a_whole_file_of_another_kind_is_no_row_to_skip() -> None:
    words = {"found": "f", "allowed": "a", "hint": "h"}
    assert (of_file(**words).kind, unreadable(**words).kind) == (ProblemKind.INPUT, ProblemKind.UNREADABLE)
