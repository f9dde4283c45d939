"""Options of rows: long text in pieces, chat templates by name or text, and the answers that the loss counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from cohort.core.errors import InputError
from cohort.data.chat import use_chat_template
from cohort.data.chat_templates import known_templates
from cohort.data.inspection import format_example, render_examples
from cohort.data.loading import LoadedDataset, load_dataset
from cohort.data.settings import DatasetSettings

Write = Callable[..., Path]
TURNS = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "first answer"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "second answer"},
]


@pytest.fixture
def tokenizer(make_tokenizer: Callable[..., PreTrainedTokenizerBase]) -> PreTrainedTokenizerBase:
    """One of its own: tests give it templates."""
    return make_tokenizer()


def load(tokenizer: PreTrainedTokenizerBase, **settings: Any) -> LoadedDataset:
    return load_dataset(DatasetSettings(**settings), tokenizer=tokenizer, use_cache=False)


def test_long_text_is_split_and_its_pieces_stay_on_one_side(
    tokenizer: PreTrainedTokenizerBase, write_jsonl: Write
) -> None:
    rows = [{"text": " ".join(f"w{number}{word}" for word in range(40))} for number in range(8)]
    path = write_jsonl([*rows, {"text": "short"}])
    whole = load(tokenizer, train=path, validation=0.5, max_length=4096)
    data = load(tokenizer, train=path, validation=0.5, max_length=32, on_long_rows="split", split_overlap=0.25)
    assert data.report.counts == {"split": 8}
    assert data.longest == 32
    trained = int(data.train.trained_T.sum() + data.validation.trained_T.sum())
    assert trained == int(whole.train.trained_T.sum() + whole.validation.trained_T.sum()), "each token once"
    assert not set(data.train.sources) & set(data.validation.sources), "a text is on one side"


def test_only_text_can_be_split(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    path = write_jsonl([{"prompt": "P", "completion": f"C{number}"} for number in range(20)])
    with pytest.raises(InputError, match=r"split with rows in the prompt_completion format.*drop or truncate"):
        load(tokenizer, train=path, on_long_rows="split")


def test_a_key_that_would_have_no_effect_is_refused(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    with pytest.raises(InputError, match=r"split_overlap with on_long_rows: drop"):
        DatasetSettings(train="f", split_overlap=0.25)
    with pytest.raises(InputError, match=r"trained_turns: last with completion_only_loss: false"):
        DatasetSettings(train="f", trained_turns="last", completion_only_loss=False)
    path = write_jsonl([{"prompt": "P", "completion": f"C{number}"} for number in range(20)])
    with pytest.raises(
        InputError, match=r"chat_template with rows in the prompt_completion format(.|\n)*trained_turns"
    ):
        load(tokenizer, train=path, chat_template="chatml", trained_turns="last")


@pytest.mark.parametrize(("turns", "marked"), [("all", 2), ("last", 1)])
def test_the_loss_counts_all_answers_or_the_last(
    tokenizer: PreTrainedTokenizerBase, write_jsonl: Write, turns: str, marked: int
) -> None:
    path = write_jsonl([{"messages": [*TURNS[:3], {**TURNS[3], "content": f"answer {n}"}]} for n in range(10)])
    use_chat_template(tokenizer, "chatml")
    data = load(tokenizer, train=path, trained_turns=turns)
    shown = format_example(render_examples(data.train, tokenizer=tokenizer, count=1)[0])
    assert shown.count("⟦") == marked
    assert ("⟦first answer" in shown) == (turns == "all")


@pytest.mark.parametrize("name", known_templates())
def test_a_known_template_renders_and_marks_answers(
    tokenizer: PreTrainedTokenizerBase, write_jsonl: Write, name: str
) -> None:
    path = write_jsonl([{"messages": [*TURNS[:3], {**TURNS[3], "content": f"answer {n}"}]} for n in range(10)])
    tokenizer.chat_template = None
    with pytest.raises(InputError, match=r"dataset\.chat_template: chatml"):
        load(tokenizer, train=path)
    use_chat_template(tokenizer, name)
    data = load(tokenizer, train=path, chat_template=name)
    shown = format_example(render_examples(data.train, tokenizer=tokenizer, count=1)[0])
    assert "⟦first answer" in shown
    assert "⟦answer " in shown


def test_a_template_that_is_neither_known_nor_a_text_is_refused() -> None:
    with pytest.raises(InputError, match=r"chat_template.*Did you mean chatml\?"):
        DatasetSettings(train="f", chat_template="chatlm")


def test_unused_options_do_not_change_the_fingerprint(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    shaping = DatasetSettings(train="f").shaping()
    assert not {"split_overlap", "chat_template", "trained_turns"} & set(shaping)
    assert "trained_turns" in DatasetSettings(train="f", trained_turns="last").shaping()
