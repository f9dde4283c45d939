"""A PEFT model with the packed linear inside computes what it computed before."""

from __future__ import annotations

import copy
from collections import defaultdict
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import trl
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoTokenizer

from cohort.core.errors import InputError
from cohort.integrations.peft import accelerate
from tests.cli.tiny_task import write_tiny_model
from tests.training.small_models import VOCABULARY, save_qwen2


def peft_model(folder: Path, **settings: Any) -> Any:
    """A small model with q, k, v biases and adapters whose B is not zero."""
    options = {"r": 6, "lora_alpha": 11, "target_modules": "all-linear", "lora_dropout": 0.0, **settings}
    model = get_peft_model(save_qwen2(folder), LoraConfig(**options))
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    return model


def losses_and_gradients(model: Any, *, seed: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    ids = torch.randint(0, VOCABULARY, (3, 17), generator=torch.Generator().manual_seed(seed))
    model.zero_grad()
    found = model(input_ids=ids, labels=ids)
    found.loss.backward()
    return found.logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_outputs_and_gradients_stay(tmp_path: Path) -> None:
    plain = peft_model(tmp_path)
    fast = copy.deepcopy(plain)
    assert accelerate(fast) == 14
    logits, gradients = losses_and_gradients(plain)
    fast_logits, fast_gradients = losses_and_gradients(fast)
    # another order of the same float32 sums
    torch.testing.assert_close(fast_logits, logits, rtol=1e-5, atol=1e-5)
    assert fast_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert (fast_gradients[name] - gradient).norm() <= 1e-5 * gradient.norm(), name


def test_it_trains_saves_and_loads_as_peft(tmp_path: Path) -> None:
    model = peft_model(tmp_path / "model", use_rslora=True)
    accelerate(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(3):
        losses_and_gradients(model)
        optimizer.step()
    logits, _ = losses_and_gradients(model)
    model.save_pretrained(tmp_path / "adapter")
    again = PeftModel.from_pretrained(save_qwen2(tmp_path / "model"), tmp_path / "adapter", is_trainable=True)
    torch.testing.assert_close(losses_and_gradients(again)[0], logits, rtol=1e-5, atol=1e-5)


def test_without_its_adapter_it_is_the_base_model(tmp_path: Path) -> None:
    plain = peft_model(tmp_path)
    fast = copy.deepcopy(plain)
    accelerate(fast)
    ids = torch.arange(12)[None]
    with torch.no_grad(), plain.disable_adapter(), fast.disable_adapter():
        assert torch.equal(plain(input_ids=ids).logits, fast(input_ids=ids).logits)
    fast.merge_adapter()
    plain.merge_adapter()
    with torch.no_grad():
        assert torch.equal(plain(input_ids=ids).logits, fast(input_ids=ids).logits)


def test_under_autocast_it_is_peft_within_bfloat16(tmp_path: Path) -> None:
    plain = peft_model(tmp_path)
    fast = copy.deepcopy(plain)
    accelerate(fast)
    own: dict[str, float] = defaultdict(float)
    peft: dict[str, float] = defaultdict(float)
    for seed in range(4):
        exact = losses_and_gradients(plain, seed=seed)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = losses_and_gradients(plain, seed=seed)
            found = losses_and_gradients(fast, seed=seed)
        assert found[0].dtype == expected[0].dtype
        for errors, (logits, gradients) in ((own, found), (peft, expected)):
            for name, value in {"logits": logits, **gradients}.items():
                right = exact[0] if name == "logits" else exact[1][name]
                errors[name] += float((value - right).norm() / right.norm()) ** 2
    # As far from float32 as PEFT itself under autocast, where each product has three digits: the same number of
    # roundings, drawn in another order, have the same mean square over all parameters.
    assert own["logits"] <= 1.3 * peft["logits"]
    assert sum(own.values()) <= 1.3 * sum(peft.values())
    # One factor has few draws, since an error of S moves whole rows of its gradient: 1.5 times as far is the same
    # noise, which differs from CPU to CPU. A wrong factor, scale or mask is 50 times as far.
    for name, square in own.items():
        assert square <= 1.5**2 * peft[name], name


def test_gradient_checkpointing_changes_nothing(tmp_path: Path) -> None:
    model = peft_model(tmp_path, lora_dropout=0.2)
    accelerate(model)
    model.train()
    torch.manual_seed(1)
    logits, gradients = losses_and_gradients(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    torch.manual_seed(1)
    again, recomputed = losses_and_gradients(model)
    assert torch.equal(again, logits)
    assert all(torch.equal(recomputed[name], gradient) for name, gradient in gradients.items())


def test_a_batch_of_several_adapters_is_peft_s(tmp_path: Path) -> None:
    plain = peft_model(tmp_path)
    plain.add_adapter("wide", LoraConfig(r=18, lora_alpha=4, target_modules=["q_proj", "down_proj"]))
    for name, parameter in plain.named_parameters():
        if "lora_B.wide" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    fast = copy.deepcopy(plain)
    accelerate(fast)
    ids = torch.randint(0, VOCABULARY, (5, 7), generator=torch.Generator().manual_seed(0))
    names = ["wide", "__base__", "default", "wide", "default"]
    plain.eval(), fast.eval()
    with torch.no_grad():
        found, expected = (model(input_ids=ids, adapter_names=names).logits for model in (fast, plain))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        fast.set_adapter("wide"), plain.set_adapter("wide")
        torch.testing.assert_close(fast(ids).logits, plain(ids).logits, rtol=1e-5, atol=1e-5)


def test_an_unmodified_sft_trainer_has_the_same_losses(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    rows = datasets.Dataset.from_list([{"input_ids": [(7 * n + i) % VOCABULARY for i in range(9)]} for n in range(12)])
    losses = []
    for number, is_fast in enumerate((False, True)):
        model = peft_model(tmp_path / "model")
        if is_fast:
            assert accelerate(model) == 14
        config = trl.SFTConfig(
            output_dir=str(tmp_path / f"run{number}"),
            max_steps=6,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            logging_steps=1,
            report_to="none",
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tiny")
        trainer = trl.SFTTrainer(model=model, args=config, train_dataset=rows, processing_class=tokenizer)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(losses[0]) == 6
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"lora_bias": True}, "lora_bias=True"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*lora_bias=True. was passed")
def test_what_it_has_not_is_refused_with_every_layer(tmp_path: Path, settings: dict[str, Any], found: str) -> None:
    with pytest.raises(InputError, match=found) as caught:
        accelerate(peft_model(tmp_path, **settings))
    assert len(caught.value.problems) == 14


def test_a_model_without_adapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without LoRA layers"):
        accelerate(save_qwen2(tmp_path))


@pytest.mark.gpu
def test_outputs_and_gradients_stay_on_a_gpu(tmp_path: Path) -> None:
    plain = peft_model(tmp_path).to("cuda")
    fast = copy.deepcopy(plain)
    accelerate(fast)
    ids = torch.randint(0, VOCABULARY, (3, 17), generator=torch.Generator().manual_seed(0)).cuda()
    gradients = []
    for model in (plain, fast):
        model(input_ids=ids, labels=ids).loss.backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        # kernels may multiply in TF32, whose mantissa has 10 bits
        assert (gradients[1][name] - gradient).norm() <= 5e-3 * gradient.norm(), name
