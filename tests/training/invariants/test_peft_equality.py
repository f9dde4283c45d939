"""One trial trained here and by PEFT with a plain torch loop on the same batches: same losses, same weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.gemma2 import modeling_gemma2

from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_config import adapter_config, shortest_target_modules
from cohort.adapters.peft_files.peft_format import peft_tensors, serialised_weights
from cohort.adapters.spec import AdapterSpec
from cohort.data.tokenised import TokenisedRows
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.schedules import Schedule
from cohort.training.trial import TrialSpec
from tests.models.fixtures.gemma2_attention import eager_attention_in_float64
from tests.training.invariants.variants import VARIANTS, peft_model, trained_tensors
from tests.training.small_models import random_rows, save_gemma2, save_llama, save_qwen2

STEPS = 10


def spec_of(
    r: int,
    *,
    batch_size: int = 4,
    learning_rate: float = 1e-3,
    use_rslora: bool = False,
    loraplus_lr_ratio: float = 1.0,
) -> TrialSpec:
    return TrialSpec(
        trial_id=0,
        seed=17,
        adapter=AdapterSpec(r=r, lora_alpha=2.0 * r, use_rslora=use_rslora),
        learning_rate=learning_rate,
        batch_size=batch_size,
        num_steps=STEPS,
        schedule=Schedule.COSINE,
        warmup_ratio=0.1,
        weight_decay=0.01,
        max_grad_norm=1.0,
        loraplus_lr_ratio=loraplus_lr_ratio,
    )


def executor_for(
    decoder: Decoder, rows: TokenisedRows, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Executor:
    return Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=ExecutorSettings(num_slots=2, num_rank_rows=128, token_budget=100, evaluation_token_budget=100),
        device=device,
        dtype=dtype,
    )


def train_here(
    directory: Path, spec: TrialSpec, rows: TokenisedRows, *, dtype: torch.dtype, device: str = "cpu"
) -> tuple[list[float], dict[str, Tensor], AdapterLayout]:
    decoder = load_decoder(directory, dtype=str(dtype).removeprefix("torch."), device=device)
    executor = executor_for(decoder, rows, dtype=dtype, device=device)
    executor.load(spec)
    losses = [executor.step()[0].loss for _ in range(spec.num_steps)]
    layout = executor.bank.layout
    return losses, trained_tensors(layout, spec.adapter, executor.weights(spec.trial_id)), layout


def train_with_peft(
    directory: Path,
    spec: TrialSpec,
    rows: TokenisedRows,
    layout: AdapterLayout,
    *,
    dtype: torch.dtype,
    device: str = "cpu",
    batch_loss: Callable[[torch.nn.Module, TokenisedRows, list[int]], list[Tensor]],
    attention: str = "sdpa",
) -> tuple[list[float], dict[str, Tensor]]:
    decoder = load_decoder(directory, dtype=str(dtype).removeprefix("torch."), device="cpu")
    start = initial_weights(layout, spec.adapter, seed=spec.seed, dtype=dtype, weight_of=decoder.weight_of)
    model, names = peft_model(directory, spec.adapter, layout, start, attention=attention)
    model = model.to(device)
    parameters = list(names.values())
    # with a ratio of 1 this is torch's AdamW over all factors
    optimizer = create_loraplus_optimizer(
        model,
        torch.optim.AdamW,
        lr=spec.learning_rate,
        loraplus_lr_ratio=spec.loraplus_lr_ratio,
        loraplus_weight_decay=spec.weight_decay,
    )
    shares = [group["lr"] / spec.learning_rate for group in optimizer.param_groups]
    order = spec.order(len(rows))
    losses = []
    model.train()
    for step in range(spec.num_steps):
        for group, share in zip(optimizer.param_groups, shares, strict=True):
            group["lr"] = spec.learning_rate_at(step) * share
        optimizer.zero_grad()
        total = 0.0
        for part in batch_loss(model, rows, order.batch(step)):
            part.backward()
            total += part.item()
        losses.append(total)
        torch.nn.utils.clip_grad_norm_(parameters, spec.max_grad_norm)
        optimizer.step()
    return losses, {name: parameter.detach() for name, parameter in names.items()}


def cross_entropy_sum(model: torch.nn.Module, tokens: Tensor, mask: Tensor, trained: Tensor) -> Tensor:
    logits = model(input_ids=tokens, attention_mask=mask).logits
    targets = torch.where(trained, tokens, torch.full_like(tokens, -100))[:, 1:]
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), reduction="sum")


def device_of(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device


def padded(model: torch.nn.Module, rows: TokenisedRows, ids: list[int]) -> list[Tensor]:
    samples = [rows.sample(i) for i in ids]
    longest = max(len(s.tokens) for s in samples)
    tokens = torch.zeros(len(ids), longest, dtype=torch.long)
    mask = torch.zeros(len(ids), longest, dtype=torch.long)
    trained = torch.zeros(len(ids), longest, dtype=torch.bool)
    for place, sample in enumerate(samples):
        length = len(sample.tokens)
        tokens[place, :length] = torch.from_numpy(sample.tokens.astype("int64"))
        mask[place, :length] = 1
        trained[place, :length] = torch.from_numpy(sample.trained)
    return [
        cross_entropy_sum(model, *(x.to(device_of(model)) for x in (tokens, mask, trained)))
        / sum(int(s.trained.sum()) for s in samples)
    ]


def one_by_one(model: torch.nn.Module, rows: TokenisedRows, ids: list[int]) -> list[Tensor]:
    samples = [rows.sample(i) for i in ids]
    count = sum(int(s.trained.sum()) for s in samples)
    parts = []
    for sample in samples:
        tokens = torch.from_numpy(sample.tokens.astype("int64"))[None]
        trained = torch.from_numpy(sample.trained)[None]
        tensors = (x.to(device_of(model)) for x in (tokens, torch.ones_like(tokens), trained))
        parts.append(cross_entropy_sum(model, *tensors) / count)
    return parts


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(("save_model", "r"), [(save_llama, 4), (save_llama, 64), (save_qwen2, 4), (save_qwen2, 16)])
def test_float64_losses_and_weights_equal_peft(tmp_path: Path, r: int, save_model: Callable[[Path], object]) -> None:
    save_model(tmp_path)
    rows, spec = random_rows(30, seed=r), spec_of(r, use_rslora=r == 16, loraplus_lr_ratio=4.0 if r == 4 else 1.0)
    losses, weights, layout = train_here(tmp_path, spec, rows, dtype=torch.float64)
    expected_losses, expected = train_with_peft(tmp_path, spec, rows, layout, dtype=torch.float64, batch_loss=padded)
    assert losses == pytest.approx(expected_losses, rel=1e-9)
    assert {
        name: relative(weights[name], expected[name])
        for name in expected
        if relative(weights[name], expected[name]) > 1e-9
    } == {}


def test_gemma2_equals_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms after the blocks, GELU, caps on scores and logits, a window: losses and every gradient, in float64."""
    monkeypatch.setattr(modeling_gemma2, "eager_attention_forward", eager_attention_in_float64)
    save_gemma2(tmp_path)
    rows, spec = random_rows(30, seed=1), spec_of(16)
    losses, weights, layout = train_here(tmp_path, spec, rows, dtype=torch.float64)
    # transformers' sdpa attention leaves the cap of the scores out
    expected_losses, expected = train_with_peft(
        tmp_path, spec, rows, layout, dtype=torch.float64, batch_loss=padded, attention="eager"
    )
    assert losses == pytest.approx(expected_losses, rel=1e-9)
    assert max(relative(weights[name], expected[name]) for name in expected) < 1e-9


@pytest.mark.filterwarnings("ignore:Specified to not")
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_equal_peft(tmp_path: Path, name: str) -> None:
    save_qwen2(tmp_path)
    # PEFT draws its dropout in another way
    adapter = replace(VARIANTS[name], lora_dropout=0.0)
    rows, spec = (
        random_rows(30, seed=5),
        replace(spec_of(4, loraplus_lr_ratio=3.0 if adapter.takes_loraplus else 1.0), adapter=adapter),
    )
    losses, weights, layout = train_here(tmp_path, spec, rows, dtype=torch.float64)
    expected_losses, expected = train_with_peft(tmp_path, spec, rows, layout, dtype=torch.float64, batch_loss=padded)
    assert losses == pytest.approx(expected_losses, rel=1e-9)
    assert max(relative(weights[name], expected[name]) for name in expected) < 1e-9


@pytest.mark.parametrize("r", [4, 64])
def test_float32_is_as_close_to_peft_as_peft_is_to_itself(tmp_path: Path, r: int) -> None:
    save_qwen2(tmp_path)
    rows, spec = random_rows(30, seed=r), spec_of(r)
    losses, weights, layout = train_here(tmp_path, spec, rows, dtype=torch.float32)
    padded_losses, in_padded = train_with_peft(tmp_path, spec, rows, layout, dtype=torch.float32, batch_loss=padded)
    _, in_singles = train_with_peft(tmp_path, spec, rows, layout, dtype=torch.float32, batch_loss=one_by_one)
    assert losses == pytest.approx(padded_losses, rel=1e-5)
    own = max(relative(in_singles[name], in_padded[name]) for name in in_padded)
    ours = max(relative(weights[name], in_padded[name]) for name in in_padded)
    assert ours <= 2 * own


@pytest.mark.filterwarnings("ignore:Specified to not")
@pytest.mark.parametrize("name", VARIANTS)
def test_peft_loads_what_is_saved_of_a_variant(tmp_path: Path, name: str) -> None:
    """Onto the base model as it is, also where training began with a part of it."""
    save_qwen2(tmp_path / "model")
    decoder = load_decoder(tmp_path / "model", dtype="float32", device="cpu")
    spec, rows = replace(spec_of(4, learning_rate=1e-2), adapter=VARIANTS[name]), random_rows(8, seed=1)
    executor = executor_for(decoder, rows)
    executor.load(spec)
    for _ in range(3):
        executor.step()
    layout, weights = executor.bank.layout, executor.weights(0)
    config = adapter_config(
        spec.adapter, base_model="base", target_modules=shortest_target_modules(layout.linears, linears=layout.linears)
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").write_bytes(serialised_weights(layout, spec.adapter, weights))
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32), tmp_path
    )
    found = executor.evaluate([0], rows=rows, row_ids=range(8))[0].loss
    with torch.no_grad():
        expected = sum(float(part) for part in one_by_one(model, rows, list(range(8))))
    assert found == pytest.approx(expected, rel=1e-5)


def test_saved_tensors_are_peft_names_and_shapes(tmp_path: Path) -> None:
    save_llama(tmp_path)
    decoder = load_decoder(tmp_path, dtype="float32", device="cpu")
    layout = AdapterLayout(dict(decoder.linears))
    spec = AdapterSpec(r=4, lora_alpha=8)
    tensors = peft_tensors(layout, spec, initial_weights(layout, spec, seed=1))
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path), LoraConfig(r=4, target_modules="all-linear"))
    expected = {n.replace(".default", ""): tuple(p.shape) for n, p in model.named_parameters() if "lora_" in n}
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == expected
