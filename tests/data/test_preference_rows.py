"""Rows that are compared: pairs stand together, labels are kept, long and senseless rows are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from cohort.core.errors import InputError
from cohort.data.inspection import render_examples
from cohort.data.loading import load_dataset
from cohort.data.settings import DatasetSettings, RowReading

Write = Callable[..., Path]

PAIRS = [{"prompt": f"Say {n}:\n", "chosen": f"{n} it is, and gladly", "rejected": f"no {n}"} for n in range(20)]


def load(tokenizer: PreTrainedTokenizerBase, reads: RowReading = RowReading.PAIRS, **settings: Any) -> Any:
    return load_dataset(DatasetSettings(**settings, reads=reads), tokenizer=tokenizer, use_cache=False)


def text_of(tokenizer: PreTrainedTokenizerBase, sample: Any, *, answer: bool) -> str:
    part = sample.tokens[sample.answer_start :] if answer else sample.tokens[: sample.answer_start]
    return str(tokenizer.decode(part.tolist(), skip_special_tokens=True)).strip()


def test_the_better_answer_of_a_pair_stands_first(gpt2: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    data = load(gpt2, train=write_jsonl(PAIRS), validation=0.2)
    assert data.report.num_train_rows == 16
    assert len(data.train) == 32
    assert data.train.sources[0] == data.train.sources[1]
    for place in range(0, 32, 2):
        chosen, rejected = data.train.sample(place), data.train.sample(place + 1)
        prompt = text_of(gpt2, chosen, answer=False)
        assert prompt == text_of(gpt2, rejected, answer=False)
        number = prompt.removeprefix("Say ").removesuffix(":")
        assert text_of(gpt2, chosen, answer=True) == f"{number} it is, and gladly"
        assert text_of(gpt2, rejected, answer=True) == f"no {number}"
        assert chosen.trained[chosen.answer_start :].all()
        assert not chosen.trained[: chosen.answer_start].any()
        assert chosen.tokens[-1] == gpt2.eos_token_id


def test_a_cached_data_set_has_its_borders_and_labels(
    gpt2: PreTrainedTokenizerBase, write_jsonl: Write, tmp_path: Path
) -> None:
    settings = DatasetSettings(train=write_jsonl(PAIRS), reads=RowReading.LABELS)
    first, second = (load_dataset(settings, tokenizer=gpt2, cache_dir=tmp_path) for _ in range(2))
    assert second.cache_status == "hit"
    assert np.array_equal(first.train.answer_starts, second.train.answer_starts)
    assert np.array_equal(first.train.labels, second.train.labels)
    # of each pair, one answer with each label
    assert len(first.train) + len(first.all_validation) == 40
    assert first.train.labels.sum() + first.all_validation.labels.sum() == 20


def test_openais_rows_are_pairs(stories: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    stories.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    stories.chat_template += "{% if add_generation_prompt %}assistant: {% endif %}"

    def said(role: str, text: str) -> list[dict[str, str]]:
        return [{"role": role, "content": text}]

    rows = [
        {
            "input": {"messages": said("user", f"{n}?")},
            "preferred_output": said("assistant", f"yes {n}"),
            "non_preferred_output": said("assistant", f"no {n}"),
        }
        for n in range(20)
    ]
    data = load(stories, train=write_jsonl(rows), validation=0.5)
    assert data.report.is_chat
    chosen, rejected = data.train.sample(0), data.train.sample(1)
    assert "yes" in text_of(stories, chosen, answer=True)
    assert "no" in text_of(stories, rejected, answer=True)
    assert text_of(stories, chosen, answer=False) == text_of(stories, rejected, answer=False)


def test_rows_with_labels(gpt2: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"P{n}\n", "completion": f"C{n}", "label": n % 4 > 0} for n in range(20)]
    data = load(gpt2, RowReading.LABELS, train=write_jsonl(rows), validation=0.5)
    assert data.report.format == "unpaired_preference"
    for place in range(len(data.train)):
        number = int(text_of(gpt2, data.train.sample(place), answer=True)[1:])
        assert data.train.sample(place).is_desirable is (number % 4 > 0)
    (shown,) = render_examples(data.train, tokenizer=gpt2, count=1)
    assert shown.source.endswith("desirable)")


def test_long_pairs_are_dropped_or_cut_as_a_whole(gpt2: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    path = write_jsonl([*PAIRS, {"prompt": "Say 1:\n", "chosen": "one " * 30, "rejected": "two"}])
    dropped = load(gpt2, train=path, max_length=20)
    assert dropped.report.counts == {"too_long": 1}
    cut = load(gpt2, train=path, max_length=20, on_long_rows="truncate")
    assert cut.report.num_train_rows + cut.report.num_validation_rows == 21
    assert cut.longest == 20
    # nothing tells the two apart within what is kept
    alike = write_jsonl([*PAIRS, {"prompt": "Say:\n", "chosen": "so " * 40, "rejected": "so " * 40 + "and no"}])
    left_out = load(gpt2, train=alike, max_length=20, on_long_rows="truncate")
    assert left_out.report.counts["empty_after_masking"] == 1


@pytest.mark.parametrize(
    ("reads", "row", "found"),
    [
        (RowReading.PAIRS, {"prompt": "P", "chosen": "C"}, "no 'rejected' among the keys"),
        (RowReading.PAIRS, {"prompt": "P", "chosen": "C", "rejected": "C"}, "the same answer"),
        (RowReading.LABELS, {"prompt": "P", "completion": "C", "label": "yes"}, "label: 'yes' (str)"),
        (RowReading.LABELS, {"prompt": "P", "completion": "C"}, "no 'label' among the keys"),
    ],
)
def test_wrong_rows_are_named_by_file_and_line(
    gpt2: PreTrainedTokenizerBase, write_jsonl: Write, reads: RowReading, row: dict[str, Any], found: str
) -> None:
    labelled = [{"prompt": p["prompt"], "completion": p["chosen"], "label": True} for p in PAIRS]
    path = write_jsonl([*(PAIRS if reads is RowReading.PAIRS else labelled), row, row])
    with pytest.raises(InputError) as caught:
        load(gpt2, reads, train=path)
    problem, again = caught.value.problems
    assert [str(problem.where), str(again.where)] == [f"{path}:21", f"{path}:22"]
    assert found in problem.found


@pytest.mark.parametrize(
    ("reads", "row", "hint"),
    [
        (RowReading.PAIRS, {"prompt": "P", "completion": "C"}, "prompt, chosen and rejected"),
        (RowReading.LABELS, {"text": "T"}, "prompt, completion and label"),
    ],
)
def test_rows_of_another_kind_are_refused(
    gpt2: PreTrainedTokenizerBase, write_jsonl: Write, reads: RowReading, row: dict[str, Any], hint: str
) -> None:
    with pytest.raises(InputError) as caught:
        load(gpt2, reads, train=write_jsonl([row] * 20))
    assert hint in caught.value.problems[0].hint


def test_real_pairs(shared_data: Path, stories: PreTrainedTokenizerBase) -> None:
    data = load(stories, train=shared_data / "data/preference/polite_responses.jsonl", max_length=400)
    assert data.report.num_train_rows > 700
    assert len(data.train) == 2 * data.report.num_train_rows
