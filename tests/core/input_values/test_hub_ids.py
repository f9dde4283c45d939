"""Names of the hub, and paths that are none."""

from __future__ import annotations

import pytest

from cohort.core.input_values.hub_ids import is_hub_id, is_model_id, split_revision


@pytest.mark.parametrize("text", ["gpt2", "openai/gsm8k", "meta-llama/Llama-3.2-1B", "a_b/c.d-e"])
def test_ids(text: str) -> None:
    assert is_hub_id(text)


@pytest.mark.parametrize("text", ["", ".", "./model", "../model", "/model", "a/b/c", "a b", "owner/", "org/set:main"])
def test_what_is_none(text: str) -> None:
    assert not is_hub_id(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gpt2@main", ("gpt2", "main")),
        ("org/model@refs/pr/1", ("org/model", "refs/pr/1")),
        ("org/model", ("org/model", None)),
        ("org/model@", ("org/model@", None)),
        ("/a/model@v1", ("/a/model@v1", None)),
        ("org/model@a b", ("org/model@a b", None)),
    ],
)
def test_a_revision_stands_behind_the_name(text: str, parts: tuple[str, str | None]) -> None:
    assert split_revision(text) == parts
    assert is_model_id(text) is (is_hub_id(text) or parts[1] is not None)
