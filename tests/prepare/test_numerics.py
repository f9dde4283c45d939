"""What exact numerics are refused with on a GPU, and the line that says they are on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.core.numerics import Numerics
from cohort.machine.machine import Machine
from cohort.prepare import numerics
from cohort.prepare.numerics import numerics_note, numerics_problems
from cohort.tasks.loading import TaskFile, task_from_mapping

CPU = Machine(device=torch.device("cpu"), device_name="cpu", dtype="float32", threads=1, memory_bytes=1)
GPU = replace(CPU, device=torch.device("cuda"), dtype="bfloat16", num_gpus=1)


def task_of(tmp_path: Path, **keys: Any) -> TaskFile:
    (tmp_path / "train.jsonl").write_text('{"prompt": "P", "completion": "C"}\n')
    data = {"model_name_or_path": "model", "dataset": {"train": "train.jsonl"}, "numerics": "exact", **keys}
    return task_from_mapping(data, base_directory=tmp_path, name="task.yaml")


@pytest.fixture(autouse=True)
def _with_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "has_exact_product", lambda device: True)
    monkeypatch.setattr(numerics, "exact_products", lambda device: "a product")


def test_a_gpu_refuses_what_has_no_exact_form(tmp_path: Path) -> None:
    exact = replace(GPU, numerics=Numerics.EXACT)
    config: Any = SimpleNamespace(pads_attention=True, family="gemma2")
    task = task_of(tmp_path, strategy="tensor")
    found = [str(problem) for problem in numerics_problems(task, exact, config=config)]
    for word in ("strategy: tensor", "gemma2"):
        assert sum(f"task.yaml: numerics: found exact with {word}" in text for text in found) == 1, word
    assert all("numerics: fast" in text for text in found)
    for quantization in ("none", "fp8", "int8", "nf4"):
        taken = task_of(tmp_path, quantization=quantization, lora={"use_dora": True})
        assert not list(numerics_problems(taken, exact, config=None))
    assert not list(numerics_problems(task, replace(CPU, numerics=Numerics.EXACT), config=config))


def test_a_gpu_without_kernels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "has_exact_product", lambda device: False)
    (problem,) = numerics_problems(task_of(tmp_path), replace(GPU, numerics=Numerics.EXACT), config=None)
    assert "a GPU without Triton's kernels" in problem.found


def test_exact_numerics_are_said_and_measured_apart() -> None:
    exact = replace(GPU, numerics=Numerics.EXACT)
    assert numerics_note(GPU) is None
    assert "the bits it would have alone on this model of GPU (a product)" in str(numerics_note(exact))
    assert exact.precision == "bfloat16, exact numerics"
    assert replace(CPU, numerics=Numerics.EXACT).precision == "float32"
