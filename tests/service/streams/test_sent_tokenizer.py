"""Texts are the same in another process, which needs transformers only where the library below it is not enough."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys

import pytest

from cohort.models.tokenizer import load_tokenizer
from cohort.service.streams.sent_tokenizer import SentTokenizer
from tests.conftest import REPOSITORY

MODEL = REPOSITORY / "examples" / "quickstart" / "base_model"


@pytest.mark.parametrize("is_plain", [True, False])
def test_texts_are_those_of_transformers(is_plain: bool) -> None:
    tokenizer = load_tokenizer(MODEL)
    tokenizer.clean_up_tokenization_spaces = not is_plain
    sent = SentTokenizer.of(tokenizer)
    assert bool(sent.library) == is_plain
    texts, chance = pickle.loads(pickle.dumps(sent)).texts(), random.Random(0)
    for length in (0, 1, 1, 2, 7):
        tokens = [chance.randrange(len(tokenizer)) for _ in range(length)]
        assert texts.decode(tokens) == tokenizer.decode(tokens, skip_special_tokens=True)
    for token in range(len(tokenizer)):
        assert texts.of_token(token) == tokenizer.decode([token])


def test_the_process_that_writes_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, cohort.service.streams.writer_program;"
        "assert not {'torch', 'transformers', 'fastapi', 'pydantic', 'prometheus_client'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
