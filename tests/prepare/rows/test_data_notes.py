"""What the report says about the rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cohort.data.lengths import measure_lengths
from cohort.data.problems import ProblemKind
from cohort.data.report import DataReport
from cohort.data.split_input import SplitInput
from cohort.prepare.rows.data_notes import data_counts, data_problems

LENGTHS = measure_lengths(np.asarray([4, 9]))
NOTHING_READ = SplitInput(num_rows_read=0, num_bytes=None, files_hash="", rows_hash="")
REPORT = DataReport(
    format="text",
    is_chat=False,
    num_rows_read=20,
    num_train_rows=10,
    num_usable_train_rows=12,
    num_validation_rows=2,
    num_evaluation_rows=2,
    num_trained_tokens=77,
    counts={},
    lines={},
    samples={},
    lengths=LENGTHS,
    train_lengths=LENGTHS,
    max_length=8,
    data_hash="",
    file_hashes={},
    tokenizer_hash="",
    train_input=NOTHING_READ,
    validation_input=NOTHING_READ,
    all_validation_input=NOTHING_READ,
)


def test_clean_data_has_no_notes() -> None:
    assert data_problems(REPORT) == ()
    assert data_counts(REPORT)["training_rows"] == 10


def test_each_kind_is_one_note_with_its_first_places() -> None:
    lines = tuple(f"train.jsonl:{line}" for line in range(1, 8))
    report = replace(REPORT, counts={"too_long": 7, "duplicate": 1}, lines={"too_long": lines, "duplicate": ("a:3",)})
    long, duplicate = data_problems(report)
    assert long.where == ", ".join(lines[:5]) + " and 2 more"
    assert long.found.startswith("7 rows too long")
    assert duplicate.found.startswith("1 row with")
    assert data_counts(report)["too_long"] == 7


def test_every_kind_of_note_has_its_words() -> None:
    for kind in ProblemKind:
        if kind is ProblemKind.INPUT:
            continue  # always stops the run
        (note,) = data_problems(replace(REPORT, counts={kind.value: 1}, lines={kind.value: ("a:1",)}))
        assert note.hint, kind
