"""How a stream is computed: as one row, or each sequence by itself where the model does not keep a row's apart."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from cohort.adapters import bank as bank_module
from cohort.core.errors import InputError
from cohort.kernels import row_stable_product
from cohort.kernels.backend import Backend
from cohort.models.bridge.interfaces import ATTENTION
from cohort.models.bridge.loading import prove_either_way
from cohort.models.bridge.probe import prove
from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.comparison import executor_of, rows_of, spec_of
from tests.models.bridge.test_probe import wrapped


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("deepseek_v32", "fails on sequences in one stream"),  # an indexer picks the keys that each query sees
        ("bamba", r"first behind model\.layers\.0"),  # a state that runs on over the bound
        ("codegen", "with a sequence of the stream that is NaN"),  # a mask over the whole stream
    ],
)
def test_sequences_that_a_row_does_not_keep_apart_are_computed_one_by_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, reason: str
) -> None:
    decoder = wrapped(save_tiny(name, tmp_path))
    with pytest.raises(InputError, match=reason):
        prove(decoder, where="model")
    with caplog.at_level(logging.WARNING):
        prove_either_way(decoder, where="model")
    assert not decoder.is_packed
    assert decoder.attention != ATTENTION
    assert "each sequence of a pass is computed by itself" in caplog.text
    assert decoder.why_one_by_one in caplog.text


def test_one_row_stays_where_it_is_right(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    decoder = wrapped(save_tiny("seed_oss", tmp_path))
    prove_either_way(decoder, where="model")
    assert decoder.is_packed
    assert decoder.attention == ATTENTION
    assert decoder.why_one_by_one == ""
    assert not caplog.text


def test_what_is_wrong_either_way_is_refused_with_the_first_reason(tmp_path: Path) -> None:
    decoder = wrapped(save_tiny("bamba", tmp_path))
    decoder.head.__dict__["_bias_N"] = torch.ones(decoder.head.out_features)
    with pytest.raises(InputError, match=r"first behind model\.layers\.0"):
        prove_either_way(decoder, where="model")


def test_a_router_in_another_number_format_is_left_alone(tmp_path: Path) -> None:
    decoder = wrapped(save_tiny("hunyuan_v1_moe", tmp_path), dtype=torch.bfloat16)
    routers = {name for name in decoder.linears if name.endswith(".wg")}
    kept = {name for name in routers if decoder.weight_of(name).dtype == torch.float32}
    assert kept == {name for name, why in decoder.unadaptable.items() if "keeps in float32" in why}


@pytest.mark.parametrize(("name", "is_packed"), [("seed_oss", True), ("codegen", False)])
def test_gradients_of_sequences_one_by_one_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_packed: bool
) -> None:
    """The grouped kernels write a step's first gradients over the last ones, which every sequence would do."""
    decoder = wrapped(save_tiny(name, tmp_path))
    prove_either_way(decoder, where="model")
    bank = executor_of(decoder, rows_of(12), device="cpu").bank
    monkeypatch.setattr(bank_module, "choose_backend", lambda _: Backend.TRITON)
    assert decoder.is_packed == bank.writes_gradients == is_packed


@pytest.mark.parametrize("name", ["falcon", "llama4_text"])
def test_what_a_model_adds_to_in_place_may_have_been_filled_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As on a processor on which MKL leads: products have a multiple of 16 rows there."""
    monkeypatch.setattr(row_stable_product, "_mkl_leads", lambda: True)
    decoder = wrapped(save_tiny(name, tmp_path))
    prove_either_way(decoder, where="model")
    executor = executor_of(decoder, rows_of(12), device="cpu")
    executor.load(spec_of())
    assert all(torch.isfinite(torch.tensor(event.loss)) for event in executor.step())
