"""Loads rows of tests, and the problems that loading them gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from cohort.core.errors import InputError, Problem
from cohort.data.loading import LoadedDataset, load_dataset
from cohort.data.settings import DatasetSettings

__all__ = ["MakeTokenizer", "Write", "load", "pairs", "problems_of"]

Write = Callable[..., Path]
MakeTokenizer = Callable[..., PreTrainedTokenizerBase]


def pairs(count: int, *, start: int = 0) -> list[dict[str, str]]:
    return [{"prompt": f"Question: {n}\n", "completion": f"answer {n}"} for n in range(start, start + count)]


def load(tokenizer: PreTrainedTokenizerBase, *, cache: Path | None = None, **settings: Any) -> LoadedDataset:
    evaluation = settings.pop("evaluation_max_examples", None)
    return load_dataset(
        DatasetSettings(**settings),
        tokenizer=tokenizer,
        evaluation_max_examples=evaluation,
        cache_dir=cache,
        use_cache=cache is not None,
    )


def problems_of(tokenizer: PreTrainedTokenizerBase, **settings: Any) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        load(tokenizer, **settings)
    return list(caught.value.problems)
