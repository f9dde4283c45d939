"""Rendered rows become tokens with a mask: special tokens, cut rows, and what generation starts from."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from cohort.core.errors import InputError
from cohort.core.source_location import Place
from cohort.data.examples import PlainText, PromptCompletion
from cohort.data.files.formats import ParsedRow
from cohort.data.problems import ProblemLog
from cohort.data.settings import DatasetSettings
from cohort.data.token_rows import TokenRow
from cohort.data.tokenise import encode_prompt, render_rows, require_usable_tokenizer, split_tokens, tokenise_rows

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


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 60),
    st.integers(4, 12),
    st.integers(0, 2),
    st.sampled_from([None, 0]),
    st.randoms(use_true_random=False),
)
def test_each_token_is_trained_once(
    length: int, most: int, overlap: int, first: int | None, random: np.random.RandomState
) -> None:
    tokens = np.arange(length, dtype=np.int32)
    trained = np.asarray([index > 0 and random.random() < 0.7 for index in range(length)])
    pieces = list(split_tokens(tokens, trained, most=most, overlap=overlap, first=first))
    assert all(len(piece) <= most and len(piece) == len(mask) and not mask[0] for piece, mask in pieces)
    found = np.concatenate([piece[mask] for piece, mask in pieces])
    # without context before it, the first token of a piece cannot be predicted
    lost = set() if overlap or first == 0 else {int(piece[0]) for piece, _ in pieces[1:]}
    assert list(found) == [token for token in tokens[trained] if int(token) not in lost]
    for (before, _), (after, mask) in pairwise(pieces):
        head = int(first == 0)
        assert list(after[head : head + overlap]) == list(before[len(before) - overlap :])
        assert not mask[: head + overlap].any()


def test_an_overlap_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        list(split_tokens(np.zeros(9, dtype=np.int32), np.ones(9, dtype=np.bool_), most=4, overlap=4, first=None))
