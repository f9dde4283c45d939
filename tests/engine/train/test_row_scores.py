"""Scores of rows by the task's metrics."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.engine.train import row_scores
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


@pytest.mark.parametrize(
    ("num_prompt", "num_answer", "is_endless"), [(3, 4, True), (3, 3, False), (6, 2, True), (6, 1, False)]
)
def test_an_answer_is_endless_at_its_limit_or_at_the_end_of_the_context(
    monkeypatch: pytest.MonkeyPatch, num_prompt: int, num_answer: int, is_endless: bool
) -> None:
    tokenizer = SimpleNamespace(batch_decode=lambda continued, **_: ["text"] * len(continued))
    scores: Any = object.__new__(RowScores)
    scores._preparation = SimpleNamespace(
        inputs=SimpleNamespace(
            config=SimpleNamespace(max_position_embeddings=8, eos_token_ids=(1,)),
            tokenizer=tokenizer,
            data=SimpleNamespace(report=SimpleNamespace(is_chat=False)),
        ),
        task=SimpleNamespace(evaluation=SimpleNamespace(max_new_tokens=4)),
    )
    scores._executor = SimpleNamespace(generate=lambda requests, **_: [[7] * num_answer for _ in requests])
    monkeypatch.setattr(row_scores, "answer_prompts", lambda *_, **__: [[5] * num_prompt])
    monkeypatch.setattr(row_scores, "end_of_answer_ids", lambda *_: (1,))
    rows: Any = None
    ((answer,),) = scores._generate([7], rows=rows, asked=[0])
    assert (answer.is_endless, answer.num_tokens) == (is_endless, num_prompt + num_answer)
