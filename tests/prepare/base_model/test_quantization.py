"""A quantised base on a CPU is said to save no time there, when the task is checked and when it begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from cohort.planning.check import check_task
from cohort.prepare.base_model.quantization import quantization_note
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs
from tests.prepare.base_model.test_numerics import GPU


def test_a_cpu_is_told_and_what_a_gpu_would_need(tmp_path: Path) -> None:
    report = check_task(tiny_task(write_inputs(tmp_path), quantization="fp8"))
    (note,) = [note for note in report.notes if note.startswith("quantization: fp8 on a CPU")]
    assert "more slowly than none; a GPU needs compute capability 8.9 or newer (L40S, H100, H200) for it" in note
    on_cpu = replace(GPU, device=torch.device("cpu"), quantization="nf4")
    assert str(quantization_note(on_cpu)).endswith("more slowly than none")
    assert quantization_note(replace(on_cpu, quantization="none")) is None
    assert quantization_note(replace(GPU, quantization="fp8")) is None
