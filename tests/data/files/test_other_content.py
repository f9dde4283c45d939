"""What a file holds is told by how it begins; rows of text are left alone."""

from __future__ import annotations

import pytest

from cohort.data.files.other_content import other_content, too_long_row


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\xff\xfe{\x00", "UTF-16 text"),
        (b"PK\x03\x04rest", "a zip file"),
        (b"PAR1rest", "a parquet file"),
        (b"\n  <HTML>", "an HTML page"),
    ],
)
def test_other_kinds_of_files(data: bytes, what: str) -> None:
    found = other_content(data)
    assert found is not None
    assert found.found == what


@pytest.mark.parametrize("data", [b"", b"{}", b"prompt,completion", b'{"text": "<html>"}', b"version,text\n1,a\n"])
def test_rows_of_text(data: bytes) -> None:
    assert other_content(data) is None


def test_rows_that_no_tokenizer_should_be_given() -> None:
    assert too_long_row(16 << 20) is None
    assert too_long_row((16 << 20) + 1) is not None
