"""A tokenizer loads from a checkpoint's own files, or the error says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.models.tokenizer import load_tokenizer


def test_a_model_without_a_tokenizer(checkpoint: Path) -> None:
    with pytest.raises(InputError, match="no tokenizer's files"):
        load_tokenizer(checkpoint)
    # where transformers has what reads such a file, it does
    for name in ("tekken.json", "tokenizer.json"):
        (checkpoint / name).write_text("{")
        with pytest.raises(InputError, match="no tokenizer that loads"):
            load_tokenizer(checkpoint)


def test_a_tokenizer_loads(repository: Path) -> None:
    folder = repository.parent / "shared" / "models" / "stories260K" / "hf"
    if not folder.is_dir():
        pytest.skip("the pretrained model stories260K is not on this machine")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer("Once upon a time")["input_ids"], skip_special_tokens=True) == "Once upon a time"
