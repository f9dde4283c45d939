"""Checkpoints stored in mxfp4 and fp8 are read as the numbers that they mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cohort.models.weights import load_decoder
from tests.models.bridge.architectures import save_tiny

# the values of four bits: sign, two bits of exponent, one of mantissa
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def store_mxfp4(folder: Path) -> dict[str, Tensor]:
    """Store random experts as gpt-oss does, and return the numbers that all tensors mean."""
    generator, meant, stored = torch.Generator().manual_seed(0), {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        meant[name] = stored[name] = tensor
        if not name.endswith(("gate_up_proj", "down_proj")):
            continue
        del stored[name]
        num_experts, ins, outs = tensor.shape
        codes = torch.randint(0, 256, (num_experts, outs, ins // 32, 16), generator=generator, dtype=torch.uint8)
        powers = torch.randint(121, 124, (num_experts, outs, ins // 32), generator=generator, dtype=torch.uint8)
        pairs = torch.stack([VALUES[(codes & 15).long()], VALUES[(codes >> 4).long()]], dim=-1)
        numbers = pairs.flatten(-2) * torch.exp2(powers.float() - 127)[..., None]
        stored |= {f"{name}_blocks": codes, f"{name}_scales": powers}
        meant[name] = numbers.reshape(num_experts, outs, ins).transpose(1, 2).contiguous()
    write(folder, stored, {"quant_method": "mxfp4"})
    return meant


def store_fp8(folder: Path) -> dict[str, Tensor]:
    """Store the linears of layers in fp8 with a factor for each block, and return the numbers that all tensors mean."""
    meant, stored = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        meant[name] = stored[name] = tensor
        if tensor.dim() != 2 or "layers." not in name or name.endswith("gate.weight"):
            continue
        factor = tensor.abs().max() / 448
        stored[name] = (tensor / factor).to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = factor.expand(1, 1).contiguous()
        meant[name] = stored[name].float() * factor
    settings = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    write(folder, stored, settings)
    return meant


def write(folder: Path, tensors: dict[str, Tensor], settings: dict[str, Any] | None) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.pop("quantization_config", None)
    path.write_text(json.dumps(config | ({} if settings is None else {"quantization_config": settings})))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "store"), [("gpt_oss", store_mxfp4), ("olmoe", store_fp8)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_weights_are_the_numbers_that_are_meant(name: str, store: Any, dtype: str, tmp_path: Path) -> None:
    folder = save_tiny(name, tmp_path)
    meant = store(folder)
    found: Any = load_decoder(folder, dtype=dtype, device="cpu")
    write(folder, meant, None)
    expected: Any = load_decoder(folder, dtype=dtype, device="cpu")
    assert {tensor.dtype for tensor in found.model.parameters()} == {getattr(torch, dtype)}
    for (path, own), other in zip(found.model.named_parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(own, other), path
