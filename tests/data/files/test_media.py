"""Rows with images are refused with the reason, and a column of text that is called so is text."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.data.files.named_row import NamedRow
from cohort.data.files.parsing import parse_row
from cohort.data.problems import BadRowError

ROW = {"prompt": "What is it?", "completion": "A cat."}


@pytest.mark.parametrize(
    ("column", "value", "kind"),
    [
        ("image", "coco/000001.jpg", "images"),
        ("images", ["https://a.example/cat.png?size=2"], "images"),
        ("images", [{"bytes": b"...", "path": None}], "images"),
        ("image", "data:image/png;base64,AAAA", "images"),
        ("Audio", {"path": "a.wav", "array": [0.1]}, "sound"),
        ("video", b"0000", "videos"),
    ],
)
def test_a_row_with_images_or_sound_is_refused(column: str, value: Any, kind: str) -> None:
    row = {**ROW, column: value}
    with pytest.raises(BadRowError, match=f"{kind} in the column {column}") as caught:
        parse_row(NamedRow(row), original=row, data_format="prompt_completion", template=None)
    assert "the text part is trained, on text alone" in caught.value.allowed


@pytest.mark.parametrize("value", ["nginx:1.27", "", None, 3, [], "a picture of a cat"])
def test_text_in_a_column_of_that_name_is_no_image(value: Any) -> None:
    row = {**ROW, "image": value}
    parse_row(NamedRow(row), original=row, data_format="prompt_completion", template=None)
