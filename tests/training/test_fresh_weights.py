"""Trials that differ in nothing that fresh weights depend on share them."""

from __future__ import annotations

import pytest
import torch

from cohort.adapters.bank import AdapterBank
from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.fresh_weights import fresh_weights
from tests.training.small_models import save_llama


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("model")
    save_llama(folder, num_layers=1)
    return load_decoder(folder, dtype="float32")


def test_weights_follow_from_rank_and_seed_alone(decoder: Decoder) -> None:
    bank = AdapterBank(AdapterLayout(decoder.linears), num_slots=1, num_rank_rows=16)
    fresh = fresh_weights(bank, decoder)
    plain = AdapterSpec(r=4, lora_alpha=8.0)
    first = fresh(plain, 1)
    assert torch.equal(first, initial_weights(bank.layout, plain, seed=1, weight_of=decoder.weight_of))
    # one tensor serves both: alpha and dropout do not change it
    assert fresh(AdapterSpec(r=4, lora_alpha=16.0, lora_dropout=0.1), 1) is first
    assert not torch.equal(fresh(plain, 2), first)


def test_weights_of_the_base_model_are_the_same_for_every_seed(decoder: Decoder) -> None:
    bank = AdapterBank(AdapterLayout(decoder.linears), num_slots=1, num_rank_rows=16)
    fresh = fresh_weights(bank, decoder)
    pissa = AdapterSpec(r=4, lora_alpha=8.0, init_lora_weights="pissa")
    assert fresh(pissa, 1) is fresh(pissa, 2)
