"""How a stream attends: by our attention, by the model's own over one mask, or not at all."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.models.bridge.interfaces import ATTENTION, MASKED_ATTENTION
from cohort.models.bridge.loading import prove_either_way
from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.test_probe import wrapped


def test_layers_that_read_the_mask_themselves_get_one_of_the_whole_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An indexer picks the keys that each query sees."""
    decoder = wrapped(save_tiny("deepseek_v32", tmp_path))
    with caplog.at_level(logging.WARNING):
        prove_either_way(decoder, where="model")
    assert decoder.attention == MASKED_ATTENTION
    assert "over one mask of all sequences" in caplog.text


def test_our_attention_stays_where_it_is_right(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    decoder = wrapped(save_tiny("seed_oss", tmp_path))
    prove_either_way(decoder, where="model")
    assert decoder.attention == ATTENTION
    assert not caplog.text


def test_what_leaks_either_way_is_refused_with_the_first_reason(tmp_path: Path) -> None:
    decoder = wrapped(save_tiny("bamba", tmp_path))
    with pytest.raises(InputError, match=r"first behind model\.layers\.0"):
        prove_either_way(decoder, where="model")
    assert decoder.attention == ATTENTION
