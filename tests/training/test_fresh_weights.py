"""Trials that differ in nothing that fresh weights depend on share them."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from cohort.adapters.bank import AdapterBank
from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.fresh_weights import FreshWeights
from tests.training.small_models import save_llama


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("model")
    save_llama(folder, num_layers=1)
    return load_decoder(folder, dtype="float32")


def test_weights_follow_from_rank_and_seed_alone(decoder: Decoder) -> None:
    bank = AdapterBank(AdapterLayout(decoder.linears), num_slots=1, num_rank_rows=16)
    fresh = FreshWeights(bank, decoder).of
    plain = AdapterSpec(r=4, lora_alpha=8.0)
    first = fresh(plain, 1)
    assert torch.equal(first, initial_weights(bank.layout, plain, seed=1, weight_of=decoder.weight_of))
    # one tensor serves both: alpha and dropout do not change it
    assert fresh(AdapterSpec(r=4, lora_alpha=16.0, lora_dropout=0.1), 1) is first
    assert not torch.equal(fresh(plain, 2), first)


def test_weights_of_the_base_model_are_the_same_for_every_seed(decoder: Decoder) -> None:
    bank = AdapterBank(AdapterLayout(decoder.linears), num_slots=1, num_rank_rows=16)
    fresh = FreshWeights(bank, decoder).of
    pissa = AdapterSpec(r=4, lora_alpha=8.0, init_lora_weights="pissa")
    assert fresh(pissa, 1) is fresh(pissa, 2)


def test_weights_that_were_drawn_in_a_thread_are_those_that_are_drawn_when_asked_for(decoder: Decoder) -> None:
    bank = AdapterBank(AdapterLayout(decoder.linears), num_slots=1, num_rank_rows=16)
    ahead = FreshWeights(bank, decoder)
    specs = [AdapterSpec(r=r, lora_alpha=8.0) for r in (2, 4, 2, 6, 8, 10)]
    ahead.draw_ahead([(spec, 1) for spec in specs])
    for spec in specs:
        assert torch.equal(ahead.of(spec, 1), FreshWeights(bank, decoder).of(spec, 1))
    # an error comes where the weights are asked for
    broken = FreshWeights(bank, decoder)
    broken._dtype = "no dtype"  # type: ignore[assignment]
    broken.draw_ahead([(specs[0], 1)])
    with pytest.raises(TypeError):
        broken.of(specs[0], 1)


def test_on_a_gpu_what_was_drawn_ahead_is_pinned_for_as_long_as_it_is_kept(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = set[int]()

    def register(address: int, _bytes: int, _flags: int) -> int:
        pinned.add(address)
        return 0

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=pinned.remove)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    bank = AdapterBank(AdapterLayout(decoder.linears), num_slots=1, num_rank_rows=16)
    ahead = FreshWeights(bank, decoder)
    ahead._device = torch.device("cuda", 0)
    specs = [AdapterSpec(r=r, lora_alpha=8.0) for r in (2, 4, 6, 8, 10, 12, 14)]
    ahead.draw_ahead([(spec, 1) for spec in specs[:4]])
    drawn = [kept.result() for kept in ahead._kept.values() if isinstance(kept, Future)]
    assert pinned == {weights.data_ptr() for weights in drawn}
    # one of them was asked for, and is kept longest; the others stay as they were drawn
    assert ahead.of(specs[0], 1) is drawn[0]
    ahead.draw_ahead([(spec, 1) for spec in specs[4:6]])
    assert {weights.data_ptr() for weights in drawn} <= pinned
    later = [kept.result() for kept in ahead._kept.values() if isinstance(kept, Future)]
    ahead.draw_ahead([(specs[6], 1)])
    assert pinned.isdisjoint(weights.data_ptr() for weights in drawn[1:3])
    # the last one drawn at first has made room for the one that is drawn now
    assert pinned >= {drawn[0].data_ptr(), *(weights.data_ptr() for weights in later if weights is not drawn[3])}
