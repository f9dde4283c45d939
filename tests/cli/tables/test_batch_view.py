"""A batch of answers in one line."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.adapter_files.pace import BatchProgress
from cohort.cli.tables.batch_view import BATCH_VIEW


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        ({"phase": "loading", "num_rows": 0}, "[1m 15s] loading"),
        # the number of rows says nothing while losses are measured
        ({"phase": "measuring the loss", "num_rows": 9}, "[1m 15s] measuring the loss"),
        ({"phase": "answering", "num_rows": 9}, "[1m 15s] answering | 3 of 9 prompts"),
        (
            {"phase": "answering", "num_rows": 9, "tokens_per_second": 1234.0, "seconds_left": 30.0},
            "[1m 15s] answering | 3 of 9 prompts | 1,234 tokens/s | about 30s left",
        ),
        # nothing is left, which needs no words
        ({"phase": "answering", "num_rows": 3, "seconds_left": 0.0}, "[1m 15s] answering | 3 of 3 prompts"),
    ],
)
def test_the_line_says_what_is_known(progress: dict[str, Any], line: str) -> None:
    found = BatchProgress(**{"num_done": 3, "elapsed_seconds": 75.0, **progress})
    assert BATCH_VIEW.line(found) == line


def test_a_new_phase_is_shown_at_once_and_there_is_no_table() -> None:
    progress = BatchProgress(phase="answering", num_done=0, num_rows=1, elapsed_seconds=0.0)
    assert BATCH_VIEW.phase(progress) == "answering"
    assert list(BATCH_VIEW.tables(progress, 80, 24)) == []
