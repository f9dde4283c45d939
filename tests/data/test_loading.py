"""Rows are read, divided and tokenised as the settings say."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from cohort.data.tokenise import encode_prompt
from cohort.prepare.rows.data_notes import split_notes
from tests.data.loading import MakeTokenizer, Write, load, pairs, problems_of


def test_a_hub_test_split_used_for_validation_is_reported(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("datasets")
    splits = {"train": pairs(6), "test": pairs(3, start=6)}
    module.load_dataset = lambda name, config: splits  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    for status in ("written", "hit"):
        data = load(tokenizer, cache=tmp_path / "cache", train="org/sums", validation="org/sums")
        assert data.cache_status == status
        assert "validated on test split: 1 (org/sums)" in data.report.summary()
        (note,) = split_notes(data.report, max_length=1024)
        assert "no validation split, so trials are compared on its test split" in note
    splits["validation"] = pairs(3, start=6)
    renamed = load(tokenizer, train="org/sums", validation="org/sums")
    assert split_notes(renamed.report, max_length=1024) == ()


def test_a_share_splits_all_rows(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    data = load(tokenizer, train=write_jsonl(pairs(50)), validation=0.2)
    assert (len(data.train), len(data.validation)) == (40, 10)
    assert not set(data.train.prompts) & set(data.validation.prompts)
    report = data.report
    assert (report.num_rows_read, report.num_train_rows, report.num_validation_rows) == (50, 40, 10)
    assert report.num_trained_tokens == int(data.train.trained_T.sum())
    assert report.format == "prompt_completion"
    place = data.train.prompts.index("Question: 7\n") if "Question: 7\n" in data.train.prompts else None
    if place is not None:
        assert data.train.references[place] == "answer 7"
        assert data.train.sources[place].endswith("train.jsonl:8")


def test_rows_satisfy_the_contract_of_tokenised_rows(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    rows = load(tokenizer, train=write_jsonl(pairs(20))).train
    assert rows.tokens_T.dtype == np.int32
    assert rows.trained_T.dtype == np.bool_
    assert rows.offsets.dtype == np.int64
    assert rows.offsets[0] == 0
    assert rows.offsets[-1] == len(rows.tokens_T) == len(rows.trained_T)
    for index in range(len(rows)):
        sample = rows.sample(index)
        assert len(sample.tokens) >= 2
        assert not sample.trained[0]
        assert sample.trained.any()


def test_a_validation_file_and_its_leaks(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    train = write_jsonl(pairs(5))
    validation = write_jsonl(pairs(3, start=4), name="validation.jsonl")
    report = load(tokenizer, train=train, validation=validation).report
    assert (report.num_train_rows, report.num_validation_rows) == (5, 3)
    assert report.counts == {"in_train_and_validation": 1}
    assert report.lines["in_train_and_validation"] == (f"{validation}:1",)


def test_test_rows_are_kept_apart_and_their_leaks_named(
    tokenizer: PreTrainedTokenizerBase, write_jsonl: Write, tmp_path: Path
) -> None:
    files = {
        "train": write_jsonl(pairs(6)),
        "validation": write_jsonl(pairs(3, start=6), name="validation.jsonl"),
        "test": write_jsonl(pairs(4, start=8), name="test.jsonl"),
    }
    for loaded in (
        load(tokenizer, cache=tmp_path / "cache", **files),
        load(tokenizer, cache=tmp_path / "cache", **files),
    ):
        assert loaded.test is not None
        assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (6, 3, 4)
        assert loaded.report.num_test_rows == 4
        assert loaded.report.lines["in_test_and_another"] == (f"{files['test']}:1",)
    without = load(tokenizer, train=files["train"], validation=files["validation"])
    assert (without.test, without.report.test_input) == (None, None)
    assert without.report.train_input == loaded.report.train_input


def test_the_same_file_for_both_splits(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    path = write_jsonl(pairs(4))
    data = load(tokenizer, train=path, validation=path)
    assert (len(data.train), len(data.validation)) == (4, 4)
    assert data.report.counts["in_train_and_validation"] == 4


def test_duplicates_are_counted_and_never_straddle(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    data = load(tokenizer, train=write_jsonl(pairs(10) * 3), validation=0.3)
    assert data.report.counts["duplicate"] == 20
    assert not set(data.train.prompts) & set(data.validation.prompts)


def test_evaluation_rows_are_chosen_by_seed(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    path = write_jsonl(pairs(60))
    chosen = [
        load(tokenizer, train=path, validation=0.5, seed=seed, evaluation_max_examples=5).validation.prompts
        for seed in (0, 0, 1)
    ]
    assert len(chosen[0]) == 5
    assert chosen[0] == chosen[1] != chosen[2]


def test_max_train_samples_takes_a_seeded_subset(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    path = write_jsonl(pairs(50))
    whole = load(tokenizer, train=path, validation=0.2)
    some = load(tokenizer, train=path, validation=0.2, max_train_samples=10)
    assert (len(some.train), some.report.num_usable_train_rows) == (10, 40)
    assert set(some.train.prompts) < set(whole.train.prompts)
    assert some.validation.prompts == whole.validation.prompts
    assert some.report.num_trained_tokens == int(some.train.trained_T.sum())
    assert "10 of 40 usable (max_train_samples)" in some.report.summary()
    assert load(tokenizer, train=path, validation=0.2, max_train_samples=10).train.prompts == some.train.prompts
    other = load(tokenizer, train=path, validation=0.2, max_train_samples=10, seed=1)
    assert set(other.train.prompts) != set(some.train.prompts)
    assert len(load(tokenizer, train=path, validation=0.2, max_train_samples=99).train) == 40


def test_preference_rows_are_recognised_and_refused_for_sft(
    tokenizer: PreTrainedTokenizerBase, write_jsonl: Write
) -> None:
    rows = [{"prompt": "P", "chosen": f"C{n}", "rejected": f"R{n}"} for n in range(20)]
    (problem,) = problems_of(tokenizer, train=write_jsonl(rows))
    assert "preference rows" in problem.found
    data = load(tokenizer, train=write_jsonl(rows), format="prompt_completion", columns={"completion": "chosen"})
    assert data.report.num_rows_read == 20


def test_chat_rows(make_tokenizer: MakeTokenizer, templates: Mapping[str, str], write_jsonl: Write) -> None:
    tokenizer = make_tokenizer(chat_template=templates["llama_3"])
    rows = [
        {"messages": [{"role": "user", "content": f"Q{n}"}, {"role": "assistant", "content": f"A{n}"}]}
        for n in range(20)
    ]
    data = load(tokenizer, train=write_jsonl(rows))
    assert data.report.is_chat
    sample = data.train.sample(0)
    # the template writes the first token, the tokenizer would add another
    assert (sample.tokens == tokenizer.bos_token_id).sum() == 1
    reference = data.train.references[0]
    assert tokenizer.decode(sample.tokens[sample.trained]) == f"{reference}<|im_end|>"
    prompt = encode_prompt(data.train.prompts[0], tokenizer=tokenizer, is_chat=True)
    assert prompt == sample.tokens[: int(np.argmax(sample.trained))].tolist()


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("sft/svamp.jsonl", {}),
        ("sft/gsm8k_test.jsonl", {"columns": {"prompt": "question", "completion": "answer"}}),
        ("text/tinystories.jsonl", {}),
    ],
)
def test_real_files(shared_data: Path, stories: PreTrainedTokenizerBase, file: str, settings: dict[str, Any]) -> None:
    data = load(stories, train=shared_data / "data" / file, max_length=512, **settings)
    report = data.report
    assert set(report.counts) <= {"too_long", "duplicate", "border_inside_token"}
    assert report.num_train_rows + report.num_validation_rows + report.counts.get("too_long", 0) == report.num_rows_read
    assert (data.train.tokens_T[data.train.offsets[:-1]] == stories.bos_token_id).all()
    assert (data.train.tokens_T[data.train.offsets[1:] - 1] == stories.eos_token_id).all()
    assert data.train.trained_T[data.train.offsets[1:] - 1].all()


def test_real_preference_file_is_recognised(shared_data: Path, stories: PreTrainedTokenizerBase) -> None:
    (problem,) = problems_of(stories, train=shared_data / "data/preference/polite_responses.jsonl")
    assert "preference rows" in problem.found
