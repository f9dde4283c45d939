"""Passes of grouped kernels whose last layer computes trained rows alone, against those that compute all.

Losses and gradients are compared, and bits where exact numerics promise them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from cohort.data.packing import pack
from cohort.kernels.packed_linear.choice.tiles import TermPlace
from cohort.kernels.packed_linear.frozen_product import can_reserve
from cohort.models.checkpoint_layout import checkpoint_layout
from cohort.models.decoder import Decoder
from cohort.models.streaming.host_source import host_streaming
from cohort.models.weights import freeze_weights, load_decoder
from cohort.training.client_training import token_passes
from cohort.training.cuda_graphs.few_layers import all_rows
from cohort.training.token_losses import rows_with_losses
from tests.kernels.packed_linear.cases import SMALL
from tests.training.left_out_passes import (
    DROPOUTS,
    PACK,
    VOCABULARY,
    bank_of,
    entries_of,
    grouped_in_python,
    launched,
    opened,
    row_by_row,
)

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _with_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with grouped_in_python(monkeypatch):
        yield


@pytest.fixture(params=[False, True], ids=["fast", "exact"])
def is_exact(request: pytest.FixtureRequest) -> bool:
    exact: bool = request.param
    return exact


@pytest.fixture
def decoder(tmp_path: Path, is_exact: bool) -> Decoder:
    return opened(tmp_path, is_exact=is_exact)


@pytest.mark.parametrize("dropouts", [(0.0,) * 4, DROPOUTS], ids=["plain", "dropped"])
def test_losses_and_gradients_are_those_of_all_rows(
    decoder: Decoder, is_exact: bool, dropouts: tuple[float, ...]
) -> None:
    bank = bank_of(decoder, is_exact=is_exact, dropouts=dropouts)
    # one of no adapter as well
    entries = entries_of((*PACK, (8, 4, -1)), drops=any(dropouts))
    with all_rows(decoder):
        whole = launched(decoder, bank, entries)
    whole_RD = bank.grads_RD.clone()
    # what is written over is not read, in slots that train nothing either
    bank.grads_RD.fill_(float("nan"))
    least = launched(decoder, bank, entries, fresh_slots=range(4))
    used = torch.cat([torch.arange(bank.num_rank_rows)[bank.slot_table().rank_rows(slot)] for slot in range(4)])
    torch.testing.assert_close(bank.grads_RD[used], whole_RD[used], rtol=2e-4, atol=2e-6)
    assert whole_RD[bank.slot_table().rank_rows(0)].abs().sum() > 0
    assert not bank.grads_RD[bank.slot_table().rank_rows(2)].any()
    if is_exact:
        assert torch.equal(least[: len(whole)], whole)
    else:
        torch.testing.assert_close(least, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dropouts", [(0.0,) * 4, DROPOUTS], ids=["plain", "dropped"])
def test_magnitudes_of_dora_read_the_rows_that_are_left(tmp_path: Path, dropouts: tuple[float, ...]) -> None:
    decoder = opened(tmp_path)
    bank = bank_of(decoder, is_exact=True, dropouts=dropouts, use_dora=True)
    entries = entries_of(PACK[:2], drops=any(dropouts))
    rows = bank.slot_table().rank_rows(0)
    rows = slice(rows.start, rows.start + bank.spec(0).num_rows)
    found = []
    for whole in (True, False):
        bank.grads_RD.zero_()
        with all_rows(decoder) if whole else nullcontext():
            losses_T = launched(decoder, bank, entries)
        found.append((losses_T, bank.grads_RD[rows].clone()))
    assert found[0][1][-1].any()
    for least, whole_sums in zip(*found, strict=True):
        torch.testing.assert_close(least, whole_sums, rtol=2e-4, atol=2e-6)


def test_a_pass_that_trains_nothing_leaves_zeros(decoder: Decoder, is_exact: bool) -> None:
    bank, entries = bank_of(decoder, is_exact=is_exact), entries_of([(9, 0, 0), (7, 0, 2)])
    bank.grads_RD.fill_(float("nan"))
    losses_T = launched(decoder, bank, entries, fresh_slots=(0, 2))
    assert not losses_T.any()
    for slot in range(4):
        own_RD = bank.grads_RD[bank.slot_table().rank_rows(slot)]
        assert own_RD.isnan().all() if slot in (1, 3) else not own_RD.any()


@pytest.mark.parametrize("samples", [PACK[:2], ((33, 1, 3),), ((16, 15, 1),)])
def test_the_last_layer_computes_trained_rows_alone(
    tmp_path: Path, samples: Sequence[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = opened(tmp_path, num_layers=2)
    heights: list[tuple[int, int, int]] = []

    def noted(x_MI: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None, **others: Any) -> Tensor:
        heights.append((*weight_NK.shape, len(x_MI)))
        return row_by_row(x_MI, weight_NK, bias_N, **others)

    module = importlib.import_module("cohort.kernels.exact_product.op")
    monkeypatch.setattr(module, "implementation", lambda *_: SimpleNamespace(product=noted))
    launched(decoder, bank_of(decoder, is_exact=True), entries_of(samples))
    tokens, trained = (-(-sum(sizes) // 16) * 16 for sizes in list(zip(*samples, strict=True))[:2])
    # a stream on a CPU has 32 rows
    tokens = max(tokens, 32)
    # queries, keys and values; output, gate and up, down
    linears = [(64, 32), (32, 32), (96, 32), (32, 48)]
    forward = [(*shape, tokens) for shape in linears] + [(64, 32, tokens), *((*own, trained) for own in linears[1:])]
    ours = [own for own in heights if own[0] != VOCABULARY]
    # on a CPU the first linear begins the graph
    assert ours == forward + forward[:0:-1]


def test_an_augmented_product_reads_the_rows_that_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to its rows are the columns that it appends, as attention writes them where all rows are computed."""
    decoder = opened(tmp_path, is_exact=False)
    tiles = replace(SMALL, term_forward=TermPlace.AUGMENTED, augmented_columns=128, augmented_rows=1)
    grouped: Any = importlib.import_module("cohort.kernels.packed_linear.triton")
    monkeypatch.setattr(grouped, "_tiles", lambda *_, **__: tiles)
    bank, entries, product = bank_of(decoder, is_exact=False), entries_of(), decoder.layers[0].linears[1].frozen
    assert can_reserve(product)
    product.reserve_columns(128)
    heights: list[int] = []
    own = product.forward_augmented

    def noted(x_TX: Tensor) -> Tensor:
        heights.append(len(x_TX))
        return own(x_TX)

    monkeypatch.setattr(product, "forward_augmented", noted)
    with all_rows(decoder):
        whole = launched(decoder, bank, entries)
    whole_RD = bank.grads_RD.clone()
    bank.grads_RD.zero_()
    least = launched(decoder, bank, entries)
    assert heights == [112, 48]
    torch.testing.assert_close(least, whole, rtol=1e-4, atol=1e-4)
    assert torch.linalg.vector_norm(bank.grads_RD - whole_RD) < 1e-4 * torch.linalg.vector_norm(whole_RD)


def test_a_fused_block_reads_the_rows_that_are_left(tmp_path: Path) -> None:
    """In 16 bits; a slot none of whose rows is left has zeros."""
    config = opened(tmp_path).config
    drawn = torch.Generator().manual_seed(1)
    tensors, products = freeze_weights(
        (fused, (0.3 * torch.randn(fused.shape, generator=drawn)).half()) for fused in checkpoint_layout(config)
    )
    decoder = Decoder(config, tensors=tensors, products=products)
    bank, entries = bank_of(decoder, is_exact=False), entries_of()
    with all_rows(decoder):
        whole = launched(decoder, bank, entries)
    whole_RD = bank.grads_RD.clone()
    bank.grads_RD.fill_(float("nan"))
    batch = pack(entries, num_slots=4, device="cpu")
    mlp: Any = decoder.layers[0].mlp
    assert mlp.is_fused(torch.empty(0, dtype=torch.float16), bank.context(batch.segments))
    least = launched(decoder, bank, entries, fresh_slots=range(4))
    torch.testing.assert_close(least, whole, rtol=1e-2, atol=1e-2)
    for slot in range(4):
        rows = bank.slot_table().rank_rows(slot)
        least_RD, expected_RD = bank.grads_RD[rows], whole_RD[rows]
        assert torch.linalg.vector_norm(least_RD - expected_RD) <= 1e-2 * torch.linalg.vector_norm(expected_RD)


def test_recomputed_layers_have_the_same_bits(decoder: Decoder, is_exact: bool) -> None:
    bank, entries = bank_of(decoder, is_exact=is_exact), entries_of()
    losses, gradients = launched(decoder, bank, entries), bank.grads_RD.clone()
    bank.grads_RD.zero_()
    assert torch.equal(launched(decoder, bank, entries, gradient_checkpointing=True), losses)
    assert torch.equal(bank.grads_RD, gradients)


def test_a_last_layer_that_is_copied_in_has_the_same_bits(tmp_path: Path) -> None:
    found = []
    for streaming in (None, host_streaming((0, 1, 2), torch.device("cpu"))):
        opened(tmp_path, num_layers=3)
        decoder = load_decoder(tmp_path, dtype="float32", device="cpu", streaming=streaming)
        decoder.use_exact_products()
        bank = bank_of(decoder, is_exact=True)
        found.append((launched(decoder, bank, entries_of(PACK[1:2])), bank.grads_RD))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert found[0][1].any()


@pytest.mark.parametrize("slot", [0, 3])
def test_a_trial_has_the_bits_it_has_alone_and_in_passes_cut_anywhere(tmp_path: Path, slot: int) -> None:
    decoder = opened(tmp_path)
    bank, entries = bank_of(decoder, is_exact=True, dropouts=DROPOUTS), entries_of(drops=True)
    rows, own = bank.slot_table().rank_rows(slot), [entry for entry in entries if entry.slot == slot]
    launched(decoder, bank, entries, fresh_slots=range(4))
    together = bank.grads_RD[rows].clone()
    launched(decoder, bank, own, fresh_slots=(slot,))
    assert torch.equal(bank.grads_RD[rows], together)
    bank.grads_RD.fill_(float("nan"))
    for number, entry in enumerate(own):
        launched(decoder, bank, [entry], fresh_slots=(slot,) if number == 0 else ())
    assert torch.equal(bank.grads_RD[rows], together)


def test_an_adapter_that_is_no_number_spoils_no_other(decoder: Decoder, is_exact: bool) -> None:
    """The stream's last row, which fills up the trained ones, is its own."""
    bank, entries = bank_of(decoder, is_exact=is_exact), entries_of([(19, 4, 0), (29, 5, 3)])
    clean = launched(decoder, bank, entries, fresh_slots=(0, 3))
    own, others = (bank.slot_table().rank_rows(slot) for slot in (3, 0))
    clean_RD = bank.grads_RD[others].clone()
    bank.weights_RD[own] = float("nan")
    spoilt = launched(decoder, bank, entries, fresh_slots=(0, 3))
    assert torch.equal(spoilt[:19], clean[:19])
    assert torch.equal(bank.grads_RD[others], clean_RD)
    assert spoilt[19:].isnan().any()


def test_divided_models_experts_and_data_of_clients_compute_all_rows(decoder: Decoder, is_exact: bool) -> None:
    bank = bank_of(decoder, is_exact=is_exact)
    batch = pack(entries_of(), num_slots=4, device="cpu")
    lora = bank.context(batch.segments)
    found = rows_with_losses(batch, lora, decoder=decoder)
    assert found is not None
    assert found.num_used == len(batch.trained_rows_M)
    assert found.rows_M[: found.num_used].tolist() == batch.trained_rows_M.tolist()
    assert set(found.rows_M[found.num_used :].tolist()) <= {batch.num_rows - 1}
    assert not token_passes._leaves_out_rows(decoder, lora)
    for divided in (True, False):
        decoder._is_divided = divided
        assert (rows_with_losses(batch, lora, decoder=decoder) is None) == divided
    mixture: Any = object()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "config", replace(decoder.config, mixture=mixture))
        assert rows_with_losses(batch, lora, decoder=decoder) is None
