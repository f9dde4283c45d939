"""Rows that ask alone: every format without its answer, the tokens generation starts from, columns for rewards."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from cohort.core.errors import InputError
from cohort.data.inspection import render_examples
from cohort.data.loading import load_dataset
from cohort.data.settings import DatasetSettings, RowReading
from cohort.data.tokenise import encode_prompt

Write = Callable[..., Path]

ROWS = [{"prompt": f"1+{n}=", "answer": str(n + 1)} for n in range(8)]


def load(tokenizer: PreTrainedTokenizerBase, **settings: Any) -> Any:
    given: dict[str, Any] = {"validation": 0.25, "reads": RowReading.PROMPTS, **settings}
    return load_dataset(DatasetSettings(**given), tokenizer=tokenizer, use_cache=False)


def test_prompts_are_what_generation_starts_from_and_columns_are_kept(
    gpt2: PreTrainedTokenizerBase, write_jsonl: Write
) -> None:
    data = load(gpt2, train=write_jsonl(ROWS))
    assert data.report.format == "prompt"
    assert len(data.train) == 6
    for place in range(6):
        sample, columns = data.train.sample(place), json.loads(data.train.columns[place])
        assert columns in ROWS
        assert sample.tokens.tolist() == encode_prompt(columns["prompt"], tokenizer=gpt2, is_chat=False)
        assert not sample.trained.any()
        assert data.train.prompts[place] == columns["prompt"]
        assert data.train.references[place] == ""


def test_mapped_columns_stand_under_both_names(gpt2: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    rows = [{"question": f"1+{n}=", "target": str(n + 1)} for n in range(4)]
    data = load(gpt2, train=write_jsonl(rows), columns={"prompt": "question", "completion": "target"})
    found = json.loads(data.train.columns[0])
    assert found == {**rows[0], "prompt": found["question"], "completion": found["target"]} or found in [
        {**row, "prompt": row["question"], "completion": row["target"]} for row in rows
    ]
    assert data.train.references[0] == found["target"]


def test_conversations_end_before_their_answer(
    make_tokenizer: Callable[..., PreTrainedTokenizerBase], templates: Mapping[str, str], write_jsonl: Write
) -> None:
    chat_tokenizer = make_tokenizer(chat_template=next(iter(templates.values())))
    asked = {"role": "user", "content": "1+1="}
    rows = [{"prompt": [{**asked, "content": f"1+{n}="}], "answer": str(n + 1)} for n in range(4)]
    data = load(chat_tokenizer, train=write_jsonl(rows))
    columns = json.loads(data.train.columns[0])
    assert columns["prompt"][0]["role"] == "user"
    assert data.report.is_chat
    rows = [{"messages": [{**asked, "content": str(n)}, {"role": "assistant", "content": "2"}]} for n in range(4)]
    data = load(chat_tokenizer, train=write_jsonl(rows))
    assert all(json.loads(own)["prompt"][-1]["role"] == "user" for own in data.train.columns)


def test_long_prompts_are_left_out_and_never_cut(gpt2: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    data = load(gpt2, train=write_jsonl([*ROWS, {"prompt": "long " * 40}]), max_length=20)
    assert len(data.train) + len(data.all_validation) == 8
    with pytest.raises(InputError, match="on_long_rows: truncate with an objective that draws answers"):
        load(gpt2, train=write_jsonl(ROWS), on_long_rows="truncate")
    with pytest.raises(InputError, match=r"(?s)split with an objective that draws answers.*Write on_long_rows: drop\."):
        load(gpt2, train=write_jsonl(ROWS), on_long_rows="split")
    # no message advises what would be refused
    for rule in ("drop", "error"):
        with pytest.raises(InputError) as refused:
            load(gpt2, train=write_jsonl(ROWS), max_length=2, on_long_rows=rule)
        assert "max_length" in str(refused.value)
        assert "truncate" not in str(refused.value)


def test_rows_of_other_objectives_are_refused(gpt2: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    pairs = [{"chosen": "a b", "rejected": "a c"}] * 4
    with pytest.raises(InputError, match=r"prompt \(prompt\)"):
        load(gpt2, train=write_jsonl(pairs))
    with pytest.raises(InputError, match="without an answer"):
        load(gpt2, train=write_jsonl(ROWS), format="prompt", reads=RowReading.ANSWERS)


def test_a_row_is_shown_as_it_is_asked(gpt2: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    assert "1+" in str(render_examples(load(gpt2, train=write_jsonl(ROWS)).train, tokenizer=gpt2, count=1))
