"""Scores of rows by the task's metrics."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

from cohort.engine.train.row_scores import RowScores, Scores, _Generated
from cohort.metrics import Metric


def test_a_group_is_scored_by_its_first_row() -> None:
    scores: Any = object.__new__(RowScores)
    scores._preparation = SimpleNamespace(group_size=2)
    scores._executor = SimpleNamespace(slot_of=lambda trial_id: trial_id)
    scores._time_spent = SimpleNamespace(on=lambda _: contextlib.nullcontext())
    scores._metrics = (Metric(name="row", score=lambda _, row: float(row["completion"])),)
    scores._compares_choices = False
    scores._generate = lambda slots, *, rows, asked: [
        [_Generated(text=rows.prompts[i], num_tokens=1, is_endless=rows.prompts[i] == "b") for i in asked]
        for _ in slots
    ]
    rows: Any = SimpleNamespace(
        prompts=("a", "a", "b", "b", "", ""), references=tuple("012345"), sources=("r",) * 6, columns=()
    )
    # ids are those of groups; the third has no prompt, and so no score
    assert scores.of([7], rows=rows, row_ids=[0, 1, 2]) == [
        Scores(by_metric={"row": (0.0, 2.0)}, num_tokens=2, num_answers=2, num_endless=1)
    ]
