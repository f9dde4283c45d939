"""Rendered rows become tokens with a mask: special tokens, cut rows, and what generation starts from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from cohort.core.errors import InputError
from cohort.core.place import Place
from cohort.data.examples import PlainText, PromptCompletion
from cohort.data.files.formats import ParsedRow
from cohort.data.problems import ProblemLog
from cohort.data.settings import DatasetSettings
from cohort.data.token_rows import TokenRow
from cohort.data.tokenise import encode_prompt, render_rows, require_usable_tokenizer, tokenise_rows

EXAMPLE = PromptCompletion(prompt="Question:\n", completion="answer")


def tokens_of(
    example: Any, tokenizer: PreTrainedTokenizerBase, *, loss_on_answer: bool = True, **keys: Any
) -> tuple[list[TokenRow], ProblemLog]:
    log = ProblemLog()
    rows = [ParsedRow(where=Place(file="f", line=1), example=example)]
    rendered = render_rows(rows, tokenizer=tokenizer, completion_only_loss=loss_on_answer, log=log)
    settings = DatasetSettings(train="f", completion_only_loss=loss_on_answer, **keys)
    return tokenise_rows(rendered, tokenizer=tokenizer, settings=settings, log=log)[0], log


def test_the_answer_and_its_end_are_trained(tokenizer: PreTrainedTokenizerBase) -> None:
    (row,), _ = tokens_of(EXAMPLE, tokenizer)
    trained = [int(token) for token in row.tokens[row.trained]]
    assert trained[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(trained[:-1]) == "answer"
    assert (row.prompt, row.reference) == ("Question:\n", "answer")


def test_every_token_but_the_first_is_trained_where_the_loss_is_on_all(tokenizer: PreTrainedTokenizerBase) -> None:
    for example, on_answer in ((PlainText(text="a few words"), True), (EXAMPLE, False)):
        (row,), _ = tokens_of(example, tokenizer, loss_on_answer=on_answer)
        assert not row.trained[0]
        assert row.trained[1:].all()


def test_a_long_row_is_cut_or_left_out(tokenizer: PreTrainedTokenizerBase) -> None:
    text = PlainText(text="a few words and some more")
    (row,), log = tokens_of(text, tokenizer, max_length=3, on_long_rows="truncate")
    assert (len(row.tokens), log.counts()) == (3, {"truncated": 1})
    rows, log = tokens_of(text, tokenizer, max_length=3, on_long_rows="drop")
    assert (rows, log.counts()) == ([], {"too_long": 1})


def test_a_row_without_a_trained_token_is_left_out(tokenizer: PreTrainedTokenizerBase) -> None:
    rows, log = tokens_of(EXAMPLE, tokenizer, max_length=2, on_long_rows="truncate")
    assert rows == []
    assert log.counts() == {"truncated": 1, "empty_after_masking": 1}


def test_generation_starts_from_the_tokens_that_training_saw(tokenizer: PreTrainedTokenizerBase) -> None:
    (row,), _ = tokens_of(EXAMPLE, tokenizer)
    prompt = encode_prompt(row.prompt, tokenizer=tokenizer, is_chat=False)
    assert prompt == row.tokens[: len(prompt)].tolist()


def test_a_tokenizer_must_be_able_to_close_an_answer(make_tokenizer: Callable[..., PreTrainedTokenizerBase]) -> None:
    tokenizer = make_tokenizer()
    require_usable_tokenizer(tokenizer, where=Place(key=("dataset",)))
    tokenizer.eos_token = None
    with pytest.raises(InputError, match="without an end-of-sequence token"):
        require_usable_tokenizer(tokenizer, where=Place(key=("dataset",)))


def test_encode_prompt_adds_what_training_had(make_tokenizer: Callable[..., PreTrainedTokenizerBase]) -> None:
    tokenizer = make_tokenizer(adds_eos=True)
    ids = encode_prompt("Question\n", tokenizer=tokenizer, is_chat=False)
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.eos_token_id not in ids
    assert encode_prompt("<s>Question\n", tokenizer=tokenizer, is_chat=False) == ids
    assert encode_prompt("Question\n", tokenizer=tokenizer, is_chat=True) == ids[1:]
