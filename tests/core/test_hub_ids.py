"""Names of the hub, and paths that are none."""

from __future__ import annotations

import pytest

from cohort.core.hub_ids import is_hub_id


@pytest.mark.parametrize("text", ["gpt2", "openai/gsm8k", "meta-llama/Llama-3.2-1B", "a_b/c.d-e"])
def test_ids(text: str) -> None:
    assert is_hub_id(text)


@pytest.mark.parametrize("text", ["", ".", "./model", "../model", "/model", "a/b/c", "a b", "owner/", "org/set:main"])
def test_what_is_none(text: str) -> None:
    assert not is_hub_id(text)
