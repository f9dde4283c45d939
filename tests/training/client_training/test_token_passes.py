"""Losses, log-probabilities and gradients of a packed pass equal plain torch, one datum at a time."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.training.client_training.client_models import ModelState
from cohort.training.client_training.datum import Datum, TokenLoss, checked_datum
from cohort.training.client_training.request_executor import AdamParameters, PassRequest
from tests.training.client_training.client_data import NAMES, a_loss, open_executor, random_datum, random_input
from tests.training.small_models import VOCABULARY, save_llama

SPEC = AdapterSpec(r=4, lora_alpha=32.0)
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def reference_loss(model: torch.nn.Module, datum: Datum, loss: TokenLoss) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a datum's loss and the log-probabilities of its targets by the whole model."""
    logits = model(input_ids=torch.from_numpy(datum.tokens)[None]).logits[0]
    logps = torch.log_softmax(logits, dim=-1).gather(1, torch.from_numpy(datum.targets))
    inputs = {name: torch.from_numpy(values).to(logits.dtype).ravel() for name, values in datum.inputs.items()}
    terms = loss.objective.terms(logps.ravel(), inputs=inputs, numbers=loss.numbers, offsets=[0, datum.targets.size])
    return terms.sum(), logps.detach()


def load_weights(model: Any, layout: AdapterLayout, weights_rD: torch.Tensor) -> None:
    """Give PEFT's model the factors of an adapter."""
    with torch.no_grad():
        for path, columns in layout.columns.items():
            module = model.base_model.model.get_submodule(path)
            module.lora_A["default"].weight.copy_(weights_rD[:, columns.a])
            module.lora_B["default"].weight.copy_(weights_rD[:, columns.b].T)


@pytest.mark.parametrize("name", NAMES)
def test_passes_and_steps_are_those_of_a_peft_loop(tmp_path: Path, name: str) -> None:
    save_llama(tmp_path)
    executor = open_executor(tmp_path, dtype="float64")
    executor.models.create("m", SPEC, seed=1, state=None)
    base = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=32, target_modules=TARGETS))
    layout = executor.layout
    weights = executor.models.state("m").adapter.weights
    load_weights(model, layout, weights)
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
                assert result.loss == pytest.approx(float(expected.detach()), abs=1e-12, rel=1e-12)
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


def plain_loss(name: str, logps: torch.Tensor, datum: Datum) -> torch.Tensor:
    """Return a datum's loss as Tinker's pages define it, with their numbers.

    Args:
        logps: Of the datum's targets, [N, K].
    """
    given = {key: torch.from_numpy(values).to(logps.dtype) for key, values in datum.inputs.items()}
    if name == "cross_entropy":
        return -(logps * given["weights"]).sum()
    advantages, ratio = given["advantages"], torch.exp(logps - given["logprobs"])
    if name == "importance_sampling":
        return -(ratio * advantages).sum()
    if name == "ppo":
        return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).sum()
    if name == "cispo":
        return -(ratio.clamp(0.8, 1.2).detach() * logps * advantages).sum()
    if name == "dro":
        return -(logps * advantages - 0.05 / 2 * (logps - given["logprobs"]) ** 2).sum()
    assert name == "gspo", name
    # one ratio a datum, whose gradient goes through each token's own log-probability
    shared = (logps - given["logprobs"]).mean().exp().detach() * torch.exp(logps - logps.detach())
    return -torch.minimum(shared * advantages, shared.clamp(0.8, 1.2) * advantages).sum()


def ragged_data(rng: np.random.Generator, loss: TokenLoss) -> tuple[Datum, ...]:
    """Return data of odd lengths, one of a single token and one whose inputs are all zero."""
    data = []
    for length in (1, 37, 2, 13):
        shape = (length, 3) if loss.objective.several_targets and length == 13 else (length,)
        zero = 0.0 if length == 2 else 1.0
        inputs = {key: zero * random_input(rng, key, shape) for key in loss.objective.inputs}
        targets = {"target_tokens": rng.integers(0, VOCABULARY, size=shape)}
        tokens = rng.integers(0, VOCABULARY, size=length)
        data.append(
            checked_datum(tokens, {**targets, **inputs}, loss=loss, place=0, vocab_size=VOCABULARY, context=256)
        )
    return tuple(data)


def plain_gradients(
    base: torch.nn.Module, request: PassRequest, weights_rD: torch.Tensor, layout: AdapterLayout
) -> tuple[list[float], torch.Tensor]:
    """Return each datum's loss and the gradient of their sum in the factors [r, D], by PEFT's model and autograd."""
    rank = len(weights_rD)
    model = get_peft_model(copy.deepcopy(base), LoraConfig(r=rank, lora_alpha=32, target_modules=TARGETS))
    load_weights(model, layout, weights_rD)
    losses = []
    for datum in request.data:
        logits = model(input_ids=torch.from_numpy(datum.tokens)[None]).logits[0]
        logps = torch.log_softmax(logits, dim=-1).gather(1, torch.from_numpy(datum.targets))
        loss = plain_loss(str(request.model_id), logps, datum)
        loss.backward()
        losses.append(float(loss.detach()))
    gradient_rD = torch.zeros(weights_rD.shape, dtype=torch.float64)
    for path, columns in layout.columns.items():
        module = model.base_model.model.get_submodule(path)
        gradient_rD[:, columns.a] = module.lora_A["default"].weight.grad
        gradient_rD[:, columns.b] = module.lora_B["default"].weight.grad.T
    return losses, gradient_rD


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-6)])
def test_the_losses_and_gradients_of_a_shared_pass_are_those_of_plain_torch(
    tmp_path: Path, dtype: str, tolerance: float
) -> None:
    save_llama(tmp_path)
    executor, rng = open_executor(tmp_path, dtype=dtype), np.random.default_rng(8)
    requests = []
    for place, name in enumerate(NAMES):
        spec = AdapterSpec(r=(1, 4, 5, 8, 16, 3)[place], lora_alpha=32.0)
        weights = torch.from_numpy(rng.normal(size=(spec.r, executor.layout.width)) * 0.05)
        state = ModelState(adapter=AdapterState(weights=weights.to(executor.decoder.dtype)))
        executor.models.create(name, spec, seed=1, state=state)
        loss = a_loss(name)
        requests.append(PassRequest(model_id=name, data=ragged_data(rng, loss), loss=loss, trains=True))
    # a call without data adds nothing
    requests.append(PassRequest(model_id="ppo", data=(), loss=a_loss("ppo"), trains=True))
    found = executor.run(requests)
    assert found.pop() == []
    exact = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    rounded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for request, results in zip(requests[:-1], found, strict=True):
        state = executor.models.state(str(request.model_id))
        losses, wanted = plain_gradients(exact, request, state.adapter.weights, executor.layout)
        for result, expected in zip(results, losses, strict=True):
            # terms may cancel in their sum
            scale = max(1.0, float(np.abs(result.terms).sum()))
            assert abs(result.loss - expected) <= tolerance * scale, request.model_id
        allowed = tolerance
        if dtype == "float32":
            # as far from the exact one as plain torch in float32 is
            _, other = plain_gradients(rounded, request, state.adapter.weights, executor.layout)
            allowed += float((other - wanted).norm() / wanted.norm())
        assert state.gradients is not None
        assert float((state.gradients - wanted).norm() / wanted.norm()) <= allowed, request.model_id


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
