"""What is said about kernels is what runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cohort.kernels.backend import Backend, BackendChoice
from cohort.kernels.packed_linear.choice import tiles as choice
from cohort.machine import kernel_choices
from cohort.machine.kernel_choices import choices_by_shape, describe_kernels, linear_groups, tile_lines

CPU = torch.device("cpu")
SHAPES = {"q_proj": (8, 8), "k_proj": (8, 4), "v_proj": (8, 4), "o_proj": (8, 8)}


def test_cpu() -> None:
    found = describe_kernels(CPU)
    assert found["backend"].startswith("reference")
    assert "per sample" in found["lora products"]
    assert "scaled_dot_product_attention" in found["attention"]
    assert (
        found["tile table"] == "none needed (measured for NVIDIA H200, NVIDIA H100 80GB HBM3: see cohort doctor --gpu)"
    )
    assert found["augmented products"] == "none needed"
    assert found["products with the term inside"] == "none needed"
    assert tile_lines(CPU, [(8, (8,))], num_rows=2048) == []


def test_choices_of_a_gpu_that_is_not_here() -> None:
    measured, other = (choices_by_shape(name, num_rows=8192) for name in ("NVIDIA H200", "Some GPU"))
    assert len(measured) == len(other) > 1
    assert any("4096 -> 4096: measured on NVIDIA H200" in line for line in measured)
    assert all("defaults (not measured here)" in line for line in other)


def test_siblings_are_one_group_and_layers_repeat() -> None:
    linears = {f"layers.{layer}.self_attn.{name}": shape for layer in range(2) for name, shape in SHAPES.items()}
    assert linear_groups(linears, targets=list(linears)) == [(8, (8, 4, 4)), (8, (8,))]
    assert linear_groups(linears, targets=["layers.0.self_attn.q_proj"]) == [(8, (8,))]


@pytest.mark.parametrize(
    ("gpu", "word", "augmented"),
    [
        ("NVIDIA H200", "measured", "up to 64 rank rows"),
        ("Some GPU", "nothing was measured on Some GPU", "for no linear"),
    ],
)
def test_a_gpu_names_the_source_of_its_tiles(
    monkeypatch: pytest.MonkeyPatch, gpu: str, word: str, augmented: str
) -> None:
    backend = BackendChoice(backend=Backend.TRITON, reason="test")
    monkeypatch.setattr(kernel_choices, "describe_backend", lambda device: backend)
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(get_device_name=lambda device: gpu))
    described = SimpleNamespace(describe_inside=str, describe=str)
    monkeypatch.setattr(kernel_choices, "implementation", lambda op, backend: described)
    row = {"in_features": 8, "out_widths": [8], "min_rows": 1, "choice": {"term_forward": "augmented"}}
    for module in (kernel_choices, choice):
        monkeypatch.setattr(module, "measured_tiles", lambda: {"NVIDIA H200": [row]})
    found = describe_kernels(torch.device("cuda"))
    assert word in found["tile table"]
    assert augmented in found["augmented products"]
    assert found["products with the term inside"] == found["exact numerics"] == "cuda"
    said = found["numerics: auto"]
    assert (
        ("exact for layers of widths 4,096 and 14,336:" in said) == (gpu == "NVIDIA H200") != said.startswith("fast:")
    )
    assert "Triton" in found["lora products"]
    assert "Triton" in found["attention"]
    assert len(tile_lines(torch.device("cuda"), [(8, (8,))], num_rows=64)) == 1
