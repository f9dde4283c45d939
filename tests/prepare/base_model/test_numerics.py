"""What auto decides and exact numerics are refused with on a GPU, and the line that says which there are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.core.numerics import Numerics
from cohort.machine.exact_steps import keep_exact_steps
from cohort.machine.machine import Machine
from cohort.prepare.base_model import numerics
from cohort.prepare.base_model.numerics import (
    choose_numerics,
    numerics_note,
    numerics_problems,
    recorded_choice,
    with_numerics,
)
from cohort.scheduling.cost.exact_ratios import ExactStep, LayerWidths
from cohort.tasks.loading import TaskFile, task_from_mapping

CPU = Machine(device=torch.device("cpu"), device_name="cpu", dtype="float32", threads=1, memory_bytes=1)
GPU = replace(CPU, device=torch.device("cuda"), dtype="bfloat16", num_gpus=1)


def task_of(tmp_path: Path, **keys: Any) -> TaskFile:
    (tmp_path / "train.jsonl").write_text('{"prompt": "P", "completion": "C"}\n')
    data = {"model_name_or_path": "model", "dataset": {"train": "train.jsonl"}, "numerics": "exact", **keys}
    return task_from_mapping(data, base_directory=tmp_path, name="task.yaml")


@pytest.fixture(autouse=True)
def _with_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_CACHE_DIR", "/nothing/there")
    monkeypatch.setattr(numerics, "has_exact_product", lambda device: True)
    monkeypatch.setattr(numerics, "exact_products", lambda device: "a product")


def test_a_gpu_refuses_what_has_no_exact_form(tmp_path: Path) -> None:
    exact = replace(GPU, numerics=Numerics.EXACT)
    config: Any = SimpleNamespace(pads_attention=True, family="gemma2", bridged=None, mixture=None)
    task = task_of(tmp_path, strategy="tensor", lora={"modules_to_save": ["lm_head"]})
    found = [str(problem) for problem in numerics_problems(task, exact, config=config)]
    for word in ("strategy: tensor", "gemma2", "lora.modules_to_save"):
        assert sum(f"task.yaml: numerics: found exact with {word}" in text for text in found) == 1, word
    assert all("numerics: fast" in text for text in found)
    for quantization in ("none", "fp8", "int8", "nf4"):
        taken = task_of(tmp_path, quantization=quantization, lora={"use_dora": True})
        assert not list(numerics_problems(taken, exact, config=None))
    # ranks of a CPU refuse what GPUs refuse, but not its model
    (on_a_cpu,) = numerics_problems(task, CPU, config=config)
    assert "found exact with strategy: tensor" in str(on_a_cpu)
    assert not list(numerics_problems(task_of(tmp_path), CPU, config=config))
    assert not list(numerics_problems(task_of(tmp_path, numerics="auto", strategy="tensor"), CPU, config=config))


def test_a_gpu_without_kernels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "has_exact_product", lambda device: False)
    (problem,) = numerics_problems(task_of(tmp_path), replace(GPU, numerics=Numerics.EXACT), config=None)
    assert "a GPU without Triton's kernels" in problem.found


def config_of(hidden_size: int = 4096, *, pads_attention: bool = False) -> Any:
    return SimpleNamespace(
        hidden_size=hidden_size,
        intermediate_size=14336,
        pads_attention=pads_attention,
        family="gemma2",
        bridged=None,
        mixture=None,
    )


@pytest.mark.parametrize(
    ("config", "keys", "gpu", "num_gpus", "decided", "why"),
    [
        (config_of(), {}, "H200", 1, Numerics.EXACT, "a step takes up to 3 % longer, measured at"),
        (config_of(), {"quantization": "fp8"}, "H200", 1, Numerics.EXACT, "up to 4 % longer"),
        (config_of(), {"strategy": "replicas"}, "H200", 8, Numerics.EXACT, "on H200"),
        (config_of(), {}, "H200", 8, Numerics.FAST, "strategy: auto may divide the model"),
        (config_of(), {"strategy": "tensor"}, "H200", 2, Numerics.FAST, "no exact form for strategy: tensor"),
        (config_of(pads_attention=True), {}, "H200", 1, Numerics.FAST, "no exact form for gemma2"),
        (config_of(), {"lora": {"modules_to_save": ["lm_head"]}}, "H200", 1, Numerics.FAST, "lora.modules_to_save"),
        (config_of(3584), {}, "H200", 1, Numerics.FAST, "`cohort doctor --measure MODEL` measures it"),
        (config_of(), {"quantization": "nf4"}, "H200", 1, Numerics.FAST, "layers as wide as these in nf4 on H200"),
        (config_of(), {}, "L40S", 1, Numerics.FAST, "not measured for layers as wide as these on L40S"),
    ],
)
def test_auto_is_exact_where_it_was_measured_to_cost_little(
    config: Any, keys: dict[str, Any], gpu: str, num_gpus: int, decided: Numerics, why: str, tmp_path: Path
) -> None:
    found = choose_numerics(task_of(tmp_path, numerics="auto", **keys), config=config, gpu=gpu, num_gpus=num_gpus)
    assert found.numerics is decided
    assert why in found.reason


def test_auto_is_fast_for_experts_of_which_nothing_was_measured(tmp_path: Path) -> None:
    task = task_of(tmp_path, lora={"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.down_proj"]})
    mixture: Any = SimpleNamespace(**{**vars(config_of()), "mixture": object(), "architecture": "MixtralForCausalLM"})
    # who asks for it gets it
    assert not list(numerics_problems(task, replace(GPU, numerics=Numerics.EXACT), config=mixture))
    found = choose_numerics(task_of(tmp_path, numerics="auto"), config=mixture, gpu="H200")
    assert found.numerics is Numerics.FAST
    assert found.reason == "what exact costs was not measured for the experts of MixtralForCausalLM"


def test_auto_is_fast_where_exact_was_measured_to_cost_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path))
    widths = LayerWidths(hidden_size=4096, intermediate_size=14336)
    keep_exact_steps([ExactStep(gpu="H200", widths=widths, tokens=16_384, ratio=1.2)])
    found = choose_numerics(task_of(tmp_path, numerics="auto"), config=config_of(), gpu="H200")
    assert found.numerics is Numerics.FAST
    assert found.reason == (
        "with exact a step takes up to 20 % longer, measured at 16,384 tokens on H200, and auto takes it up to 5 %"
    )


@pytest.mark.parametrize(
    ("keys", "decided"),
    [
        ({}, Numerics.EXACT),
        ({"lora": {"lora_dropout": 0.1}}, Numerics.EXACT),
        ({"search": {"space": {"lora_dropout": [0.0, 0.05]}}}, Numerics.EXACT),
        ({"lora": {"use_dora": True}}, Numerics.FAST),
    ],
)
def test_passes_that_are_never_recorded_count_where_a_trial_may_have_them(
    keys: dict[str, Any], decided: Numerics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path))
    step = ExactStep(gpu="L4", widths=LayerWidths(hidden_size=4096, intermediate_size=14336), tokens=8192, ratio=1.01)
    keep_exact_steps([step, replace(step, ratio=1.2, launched=True)])
    found = choose_numerics(task_of(tmp_path, numerics="auto", **keys), config=config_of(), gpu="L4")
    assert found.numerics is decided
    assert ("20 % longer" in found.reason) == (decided is Numerics.FAST)


def test_what_a_task_names_and_what_a_run_began_with_stays(tmp_path: Path) -> None:
    auto, gpu = task_of(tmp_path, numerics="auto"), replace(GPU, device_name="NVIDIA H200")
    decided = with_numerics(auto, gpu, config=config_of())
    assert (decided.numerics, "3 % longer" in decided.numerics_reason) == (Numerics.EXACT, True)
    # a task file says for itself why
    for name in Numerics:
        named = with_numerics(task_of(tmp_path, numerics=str(name)), gpu, config=config_of())
        assert (named.numerics, named.numerics_reason) == (name, "")
    kept = with_numerics(auto, gpu, config=config_of(), recorded=recorded_choice("fast"))
    assert numerics_note(kept) == "numerics: fast (as the run began)"
    assert recorded_choice(None) is None
    # one GPU here, and one elsewhere: the model may be divided
    assert with_numerics(auto, gpu, config=config_of(), num_gpus=2).numerics is Numerics.FAST
    # a CPU has one way
    assert with_numerics(auto, CPU, config=config_of()) == CPU
    (problem,) = numerics_problems(auto, replace(gpu, numerics=Numerics.EXACT), config=config_of(pads_attention=True))
    assert problem.hint == "Resume it where it began."


def test_exact_numerics_are_said_and_measured_apart() -> None:
    exact = replace(GPU, numerics=Numerics.EXACT)
    assert numerics_note(GPU) is None
    assert "the bits it would have alone on this model of GPU (a product)" in str(numerics_note(exact))
    assert exact.precision == "bfloat16, exact numerics"
    assert replace(CPU, numerics=Numerics.EXACT).precision == "float32"
