"""Targets of the last positions alone, and log-probabilities at a temperature."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.models.weights import load_decoder
from cohort.training.client_losses import TOKEN_OBJECTIVES
from cohort.training.client_training.datum import Datum, TokenLoss
from cohort.training.client_training.token_passes import SlotDatum, measure_tokens, train_tokens
from tests.training.small_models import VOCABULARY, save_llama

LOSS = TokenLoss(objective=TOKEN_OBJECTIVES["cross_entropy"], numbers={})


def test_targets_of_the_last_positions_are_those_of_all_with_weights_of_zero_and_a_temperature_divides_logits(
    tmp_path: Path,
) -> None:
    model = save_llama(tmp_path)
    decoder = load_decoder(str(tmp_path), dtype="float32", device="cpu")
    spec = AdapterSpec(r=4, lora_alpha=8.0)
    bank = AdapterBank(AdapterLayout(decoder.linears), num_slots=1, num_rank_rows=16)
    weights_rD = torch.randn(4, bank.layout.width, generator=torch.Generator().manual_seed(0)) * 0.1
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 20)
    answer = tokens[12:][:, None]
    of_last = Datum(tokens=tokens[:-1], targets=answer, inputs={"weights": np.ones((8, 1))})
    weights = np.concatenate([np.zeros((11, 1)), np.ones((8, 1))])
    of_all = Datum(tokens=tokens[:-1], targets=tokens[1:][:, None], inputs={"weights": weights})

    gradients, terms = [], []
    for datum in (of_last, of_all):
        bank.insert(spec, AdapterState(weights=weights_rD))
        (found,) = train_tokens(decoder, bank, [SlotDatum(slot=0, datum=datum, loss=LOSS)], fresh_slots=())
        terms.append(found.loss)
        gradients.append(bank.grads_RD.clone())
        bank.clear_gradients(0)
        bank.remove(0)
    assert of_last.first == 11
    assert terms[0] == pytest.approx(terms[1], rel=1e-6)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-7)

    (measured,) = measure_tokens(
        decoder, bank, [SlotDatum(slot=-1, datum=replace(of_last, temperature=0.5), loss=LOSS)]
    )
    with torch.no_grad():
        logits = model(torch.tensor(tokens[None, :-1])).logits[0, 11:]
    expected = (logits / 0.5).log_softmax(dim=-1).gather(1, torch.tensor(answer))
    np.testing.assert_allclose(measured.logps, expected.numpy(), rtol=1e-5, atol=1e-5)
