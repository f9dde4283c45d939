"""A layer as one node has the bits of a layer of single nodes, and is not taken for what it does not know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.linear import LoraContext
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.segments import SegmentTable
from cohort.models import decoder_layer
from cohort.models.attention import PackedAttention
from cohort.models.decoder import Decoder
from cohort.models.one_node.layer_node import through_one_node
from cohort.models.tiled_attention import TiledAttention
from cohort.models.weights import load_decoder
from tests.models.fixtures.tiny_checkpoints import save_checkpoint

LENGTHS, SLOTS = [32, 32, 7, 1, 40, 16], [0, 0, 1, 1, 2, -1]
NUM_ROWS = 144


@pytest.fixture(scope="module", params=["Llama", "Qwen2"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    # Qwen2 has biases
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return load_decoder(save_checkpoint(tmp_path_factory.mktemp("model"), request.param, **sizes))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def bank_of(decoder: Decoder, *, targets: tuple[str, ...] = (), dropout: float = 0.0) -> AdapterBank:
    """A bank of three adapters of other ranks and scales on the linears that ``targets`` name, or all."""
    linears = {name: own for name, own in decoder.linears.items() if not targets or name.endswith(targets)}
    layout = AdapterLayout(linears)
    bank = AdapterBank(layout, num_slots=3, num_rank_rows=48, device="cpu", dtype=torch.float32)
    for rank, alpha in ((8, 16.0), (8, 12.0), (4, 8.0)):
        spec = AdapterSpec(r=rank, lora_alpha=alpha, lora_dropout=dropout)
        weights_rD = initial_weights(layout, spec, seed=rank, dtype=torch.float32, weight_of=decoder.weight_of)
        generator = torch.Generator().manual_seed(rank)
        weights_rD += 0.1 * torch.randn(weights_rD.shape, generator=generator)
        bank.insert(spec, AdapterState(weights=weights_rD))
    return bank


def trained(decoder: Decoder, bank: AdapterBank, *, drops: bool = False, checkpointing: bool = False) -> list[Tensor]:
    """Return the hidden states and all gradients of one pass."""
    bank.grads_RD.zero_()
    hidden_TD = hidden_of(decoder, context_of(bank, drops=drops), checkpointing=checkpointing)
    weights_TD = torch.randn(hidden_TD.shape, generator=torch.Generator().manual_seed(7))
    (hidden_TD * weights_TD)[: sum(LENGTHS)].sum().backward()
    return [hidden_TD.detach(), bank.grads_RD.clone()]


def context_of(bank: AdapterBank, *, drops: bool = False) -> LoraContext:
    segments = SegmentTable.from_samples(LENGTHS, slots=SLOTS, num_slots=3, num_rows=NUM_ROWS)
    return bank.context(segments, row_keys_T=torch.arange(NUM_ROWS) * 977 if drops else None)


def hidden_of(
    decoder: Decoder, lora: LoraContext, *, checkpointing: bool = False, attention: PackedAttention | None = None
) -> Tensor:
    tokens_T = torch.randint(0, 60, (NUM_ROWS,), generator=torch.Generator().manual_seed(3))
    places = [torch.arange(length) for length in [*LENGTHS, NUM_ROWS - sum(LENGTHS)]]
    return decoder.forward(
        tokens_T,
        positions_T=torch.cat(places),
        attention=attention or PackedAttention(offsets()),
        lora=lora,
        gradient_checkpointing=checkpointing,
    )


def offsets() -> tuple[int, ...]:
    return tuple(sum(LENGTHS[:place]) for place in range(len(LENGTHS) + 1))


def never(*arguments: object, **keywords: object) -> None:
    return None


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that grows by an entry for each layer that asks: whether it was one node."""
    taken: list[bool] = []

    def counting(*arguments: object, **keywords: object) -> object:
        found = through_one_node(*arguments, **keywords)  # type: ignore[arg-type]
        taken.append(found is not None)
        return found

    monkeypatch.setattr(decoder_layer, "through_one_node", counting)
    return taken


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("targets", [(), ("q_proj", "down_proj"), ("k_proj",)])
def test_it_has_the_bits_of_single_nodes(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, threads: int, targets: tuple[str, ...], *, drops: bool
) -> None:
    bank = bank_of(decoder, targets=targets, dropout=0.2 if drops else 0.0)
    taken = counted(monkeypatch)
    together = trained(decoder, bank, drops=drops)
    assert taken == [True] * len(decoder.layers), threads
    monkeypatch.setattr(decoder_layer, "through_one_node", never)
    apart = trained(decoder, bank, drops=drops)
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))
    assert bank.grads_RD.abs().sum() > 0


def test_where_nothing_before_down_is_adapted_single_nodes_begin_the_graph(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank, taken = bank_of(decoder, targets=("down_proj",)), counted(monkeypatch)
    together = trained(decoder, bank)
    assert taken == [False] + [True] * (len(decoder.layers) - 1)
    monkeypatch.setattr(decoder_layer, "through_one_node", never)
    assert all(torch.equal(a, b) for a, b in zip(together, trained(decoder, bank), strict=True))


def test_a_recomputed_layer_is_of_single_nodes_and_has_the_same_bits(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = bank_of(decoder)
    kept, taken = trained(decoder, bank), counted(monkeypatch)
    recomputed = trained(decoder, bank, checkpointing=True)
    assert not taken
    assert all(torch.equal(a, b) for a, b in zip(kept, recomputed, strict=True))


def test_other_passes_are_of_single_nodes(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    bank, taken = bank_of(decoder), counted(monkeypatch)
    lora = context_of(bank)
    with torch.no_grad():
        hidden_of(decoder, lora)
    hidden_of(decoder, lora, attention=TiledAttention(offsets()))
    without_sinks = {name: replace(part, grad_a_RK=None, grad_b_RN=None) for name, part in lora.factors.items()}
    hidden_of(decoder, replace(lora, factors=without_sinks))
    assert not any(taken)
    assert len(taken) == 3 * len(decoder.layers)


@pytest.mark.parametrize("family", ["Qwen3", "Gemma2"])
def test_layers_of_another_form_are_of_single_nodes(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = load_decoder(save_checkpoint(tmp_path / "model", family))
    taken = counted(monkeypatch)
    trained(decoder, bank_of(decoder))
    assert not taken


def test_a_window_that_hides_something_is_for_single_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = counted(monkeypatch)
    for window, expected in ((8, False), (64, True)):
        decoder = load_decoder(save_checkpoint(tmp_path / str(window), "Mistral", sliding_window=window))
        trained(decoder, bank_of(decoder))
        assert set(taken) == {expected}
        taken.clear()
