from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from cohort.core.source_location import Place
from cohort.data.examples import PromptCompletion
from cohort.data.files.formats import ParsedRow
from cohort.data.masking import border_is_inside_token, tokens_in_spans
from cohort.data.problems import ProblemLog
from cohort.data.settings import DatasetSettings
from cohort.data.token_rows import TokenRow
from cohort.data.tokenise import render_rows, tokenise_rows

# letters, spaces, line breaks, accents, emoji of several bytes: what makes borders hard
TEXT = st.text(alphabet="ab Question:\nAnswer é🦙中yes42.,", max_size=30)
ANSWER = TEXT.filter(lambda text: bool(text.strip()))


def tokenised(prompt: str, completion: str, *, tokenizer: PreTrainedTokenizerBase, only: bool = True) -> TokenRow:
    rows = [ParsedRow(where=Place(file="f", line=1), example=PromptCompletion(prompt=prompt, completion=completion))]
    log = ProblemLog()
    rendered = render_rows(rows, tokenizer=tokenizer, completion_only_loss=only, log=log)
    settings = DatasetSettings(train="f", max_length=1000, completion_only_loss=only)
    kept, _ = tokenise_rows(rendered, tokenizer=tokenizer, settings=settings, log=log)
    assert len(kept) == 1, log.entries
    return kept[0]


def check_mask(row: TokenRow, *, prompt: str, completion: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """By characters: the trained tokens cover the completion, and hold no token that is wholly of the prompt."""
    batch = tokenizer(prompt + completion, return_offsets_mapping=True)
    offsets = batch["offset_mapping"]
    expected = [start < end and end > len(prompt) for start, end in offsets]
    if batch["input_ids"][-1] != tokenizer.eos_token_id:
        expected.append(True)
    expected[0] = False
    assert row.trained.tolist() == expected
    assert row.tokens[-1] == tokenizer.eos_token_id
    assert row.trained[-1]
    assert row.tokens[: len(batch["input_ids"])].tolist() == batch["input_ids"]


@given(prompt=TEXT, completion=ANSWER)
def test_byte_level_tokens_of_the_answer_are_trained(
    tokenizer: PreTrainedTokenizerBase, prompt: str, completion: str
) -> None:
    row = tokenised(prompt, completion, tokenizer=tokenizer)
    check_mask(row, prompt=prompt, completion=completion, tokenizer=tokenizer)


@given(prompt=TEXT.filter(bool), completion=ANSWER)
def test_gpt2_tokens_of_the_answer_are_trained(gpt2: PreTrainedTokenizerBase, prompt: str, completion: str) -> None:
    check_mask(tokenised(prompt, completion, tokenizer=gpt2), prompt=prompt, completion=completion, tokenizer=gpt2)


@given(prompt=TEXT, completion=ANSWER)
def test_sentencepiece_tokens_of_the_answer_are_trained(
    stories: PreTrainedTokenizerBase, prompt: str, completion: str
) -> None:
    row = tokenised(prompt, completion, tokenizer=stories)
    check_mask(row, prompt=prompt, completion=completion, tokenizer=stories)
    assert row.tokens[0] == stories.bos_token_id
    assert (row.tokens == stories.bos_token_id).sum() == 1


@given(prompt=TEXT.map(lambda text: text + "\n"), completion=ANSWER.map(str.strip))
def test_trained_tokens_decode_to_the_answer(tokenizer: PreTrainedTokenizerBase, prompt: str, completion: str) -> None:
    # the answer starts with a letter here: byte-level BPE may join two line breaks, never a line break and a letter
    row = tokenised(prompt, completion, tokenizer=tokenizer)
    assert tokenizer.decode(row.tokens[row.trained]) == completion + "</s>"


def test_a_token_across_the_border_is_trained(gpt2: PreTrainedTokenizerBase) -> None:
    # "Answer: " + "yes" is tokenised as Answer, :, " yes": the only token of the answer begins in the prompt
    row = tokenised("Answer: ", "yes", tokenizer=gpt2)
    assert gpt2.convert_ids_to_tokens(row.tokens.tolist()) == ["Answer", ":", "Ġyes", "<|endoftext|>"]
    assert row.trained.tolist() == [False, False, True, True]


def test_the_first_token_is_never_trained(gpt2: PreTrainedTokenizerBase) -> None:
    row = tokenised("", "yes it is", tokenizer=gpt2)
    assert row.trained.tolist() == [False, True, True, True]


def test_everything_but_the_first_token_is_trained_on_request(tokenizer: PreTrainedTokenizerBase) -> None:
    row = tokenised("Question?\n", "yes", tokenizer=tokenizer, only=False)
    assert not row.trained[0]
    assert row.trained[1:].all()


def test_a_tokenizer_that_adds_eos_itself_gets_no_second(
    make_tokenizer: Callable[..., PreTrainedTokenizerBase],
) -> None:
    tokenizer = make_tokenizer(adds_eos=True)
    row = tokenised("Q\n", "yes", tokenizer=tokenizer)
    assert (row.tokens == tokenizer.eos_token_id).sum() == 1
    assert row.trained[-1]


def test_eos_written_in_the_completion_gets_no_second(tokenizer: PreTrainedTokenizerBase) -> None:
    row = tokenised("Q\n", "yes</s>", tokenizer=tokenizer)
    assert (row.tokens == tokenizer.eos_token_id).sum() == 1
    assert row.trained[-1]


def test_bos_written_in_the_prompt_is_not_doubled(tokenizer: PreTrainedTokenizerBase) -> None:
    row = tokenised("<s>Q\n", "yes", tokenizer=tokenizer)
    assert (row.tokens == tokenizer.bos_token_id).sum() == 1


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(2, 4)], [False, False, True, True, False]),
        ([(3, 4)], [False, False, False, True, False]),
        ([(1, 3)], [False, True, True, False, False]),
        ([(0, 1), (4, 5)], [False, True, False, False, True]),
        ([], [False] * 5),
        ([(2, 2)], [False] * 5),
    ],
)
def test_spans_by_hand(spans: list[tuple[int, int]], expected: list[bool]) -> None:
    offsets = np.array([[0, 0], [0, 2], [2, 3], [3, 4], [4, 5]])
    assert tokens_in_spans(offsets, spans=spans).tolist() == expected


def test_a_border_inside_a_token_is_seen() -> None:
    offsets = np.array([[0, 0], [0, 2], [2, 3]])
    assert border_is_inside_token(offsets, spans=[(1, 3)])
    assert not border_is_inside_token(offsets, spans=[(2, 3)])
