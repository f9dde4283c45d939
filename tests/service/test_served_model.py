"""Names of models: the base model has no adapter, and an unknown name lists what there is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cohort.service.served_model import ServedModel
from cohort.serving.adapter_registry import UnknownAdapterError


def test_a_name_is_the_base_model_s_an_adapter_s_or_an_error_with_all_names() -> None:
    def handle(name: str) -> str:
        if name != "ada":
            raise UnknownAdapterError(f"there is no {name!r}; adapters: ada")
        return "ada's handle"

    engine: Any = SimpleNamespace(most_tokens=64)
    content: Any = None
    pool: Any = SimpleNamespace(handle=handle)
    model = ServedModel(
        names=("llama", "base"),
        tokenizer=None,
        vocab_size=9,
        stop_ids=frozenset(),
        engine=engine,
        pool=pool,
        max_prompts=2,
        base=content,
    )
    assert model.adapter("base") is None
    assert str(model.adapter("ada")) == "ada's handle"
    with pytest.raises(UnknownAdapterError, match=r"there is no 'eve'; adapters: ada; the base model: llama or base"):
        model.adapter("eve")
