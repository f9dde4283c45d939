"""Tokens become the text that transformers makes of them, also where that does more than the library below."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from cohort.models.tokenizer import load_tokenizer
from cohort.serving.text.text_decoder import text_decoder
from tests.conftest import REPOSITORY

MODEL = REPOSITORY / "examples" / "quickstart" / "base_model"


def words(**settings: Any) -> PreTrainedTokenizerFast:
    pieces = ["<end>", "well", " ,", " then", " .", " n't"]
    tokenizer = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token="<end>"))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", **settings)


@pytest.mark.parametrize("cleans", [False, True])
def test_texts_are_those_of_transformers(cleans: bool) -> None:
    tokenizers = [load_tokenizer(MODEL), words(clean_up_tokenization_spaces=cleans)]
    for tokenizer in tokenizers:
        decode, chance = text_decoder(tokenizer), random.Random(0)
        for length in (1, 1, 2, 3, 9, 0, 1):
            tokens = [chance.randrange(len(tokenizer)) for _ in range(length)]
            assert decode(tokens) == tokenizer.decode(tokens, skip_special_tokens=True)
    # a space before a comma goes where it is asked for
    assert text_decoder(tokenizers[1])([1, 2, 3, 4]) == ("well, then." if cleans else "well , then .")


def test_a_class_with_a_decoding_of_its_own_keeps_it() -> None:
    class Loud(PreTrainedTokenizerFast):
        def _decode(self, *given: Any, **named: Any) -> str:
            return str(super()._decode(*given, **named)).upper()

    loud = Loud(tokenizer_object=words().backend_tokenizer, eos_token="<end>")
    assert text_decoder(loud)([1, 3]) == "WELL THEN"
