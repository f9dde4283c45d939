"""Losses, log-probabilities and gradients of a packed pass equal plain torch, one datum at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from cohort.adapters.spec import AdapterSpec
from cohort.training.requests.datum import Datum, TokenLoss
from cohort.training.requests.request_executor import AdamParameters, PassRequest
from tests.training.requests.client_data import NAMES, a_loss, open_executor, random_datum
from tests.training.small_models import save_llama

SPEC = AdapterSpec(r=4, lora_alpha=32.0)
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def reference_loss(model: torch.nn.Module, datum: Datum, loss: TokenLoss) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a datum's loss and the log-probabilities of its targets by the whole model."""
    logits = model(input_ids=torch.from_numpy(datum.tokens)[None]).logits[0]
    logps = torch.log_softmax(logits, dim=-1).gather(1, torch.from_numpy(datum.targets))
    inputs = {name: torch.from_numpy(values).to(logits.dtype).ravel() for name, values in datum.inputs.items()}
    terms = loss.objective.terms(logps.ravel(), inputs=inputs, numbers=loss.numbers, offsets=[0, datum.targets.size])
    return terms.sum(), logps.detach()


@pytest.mark.parametrize("name", NAMES)
def test_passes_and_steps_are_those_of_a_peft_loop(tmp_path: Path, name: str) -> None:
    save_llama(tmp_path)
    executor = open_executor(tmp_path, dtype="float64")
    executor.models.create("m", SPEC, seed=1, state=None)
    base = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=32, target_modules=TARGETS))
    layout = executor.layout
    weights = executor.models.state("m").adapter.weights
    with torch.no_grad():
        for path, columns in layout.columns.items():
            module = model.base_model.model.get_submodule(path)
            module.lora_A["default"].weight.copy_(weights[:, columns.a])
            module.lora_B["default"].weight.copy_(weights[:, columns.b].T)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.1)
    rng, loss = np.random.default_rng(5), a_loss(name)
    numbers = AdamParameters(learning_rate=1e-2, weight_decay=0.1, grad_clip_norm=0.5)
    for _ in range(3):
        # gradients of two calls add up before a step
        for _ in range(2):
            data = tuple(random_datum(rng, loss) for _ in range(3))
            request = PassRequest(model_id="m", data=data, loss=loss, trains=True)
            (found,) = executor.run([request])
            for datum, result in zip(data, found, strict=True):
                expected, logps = reference_loss(model, datum, loss)
                expected.backward()
                assert result.loss == pytest.approx(float(expected.detach()), abs=1e-10, rel=1e-12)
                np.testing.assert_allclose(result.logps, logps.numpy(), atol=1e-12, rtol=1e-12)
        norm = torch.nn.utils.clip_grad_norm_(trained, 0.5)
        optimizer.step()
        optimizer.zero_grad()
        (own,) = executor.step([("m", numbers)])
        # clip_grad_norm_ adds 1e-6 to a norm, as the step of a bank does
        assert own == pytest.approx(float(norm), rel=1e-9)
    weights = executor.models.state("m").adapter.weights
    for path, columns in layout.columns.items():
        module = model.base_model.model.get_submodule(path)
        torch.testing.assert_close(
            weights[:, columns.a], module.lora_A["default"].weight.detach(), atol=1e-9, rtol=1e-9
        )
        torch.testing.assert_close(
            weights[:, columns.b], module.lora_B["default"].weight.detach().T, atol=1e-9, rtol=1e-9
        )


def test_a_forward_adds_no_gradient_and_the_base_model_can_be_measured(tmp_path: Path) -> None:
    model = save_llama(tmp_path)
    executor, loss = open_executor(tmp_path), a_loss("cross_entropy")
    executor.models.create("m", SPEC, seed=1, state=None)
    datum = random_datum(np.random.default_rng(1), loss)
    measured, own = executor.run(
        [
            PassRequest(model_id=None, data=(datum,), loss=loss, trains=False),
            PassRequest(model_id="m", data=(datum,), loss=loss, trains=False),
        ]
    )
    _, logps = reference_loss(model, datum, loss)
    np.testing.assert_allclose(measured[0].logps, logps.numpy(), atol=1e-5)
    # B is zero before the first step
    assert measured[0].logps.tobytes() == own[0].logps.tobytes()
    assert executor.models.state("m").gradients is None
