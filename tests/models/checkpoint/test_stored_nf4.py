"""Checkpoints that bitsandbytes saved in nf4: read as they are, and anything else is refused with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cohort.core.errors import InputError
from cohort.kernels.nf4_weight import quantise
from cohort.kernels.nf4_weight.reference import VALUES
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config_file import read_config
from cohort.models.weights import load_decoder
from tests.models.fixtures.tiny_checkpoints import edit_config, edit_tensors, save_checkpoint
from tests.models.test_decoder import MINE, run

QUANTISED: dict[str, Any] = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
}


def as_bitsandbytes_saves(weight: Tensor) -> dict[str, Tensor]:
    kept = quantise(weight)
    state = {
        "quant_type": "nf4",
        "blocksize": 64,
        "dtype": "float32",
        "shape": list(weight.shape),
        "nested_blocksize": 256,
        "nested_dtype": "float32",
        "nested_offset": kept.offset.item(),
    }
    return {
        "": kept.codes[:, None],
        ".absmax": kept.scale_codes,
        ".nested_absmax": kept.nested_scales,
        ".nested_quant_map": kept.nested_map,
        ".quant_map": torch.tensor(VALUES),
        ".quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The same checkpoint as published, and with its linears in nf4."""
    plain, stored = (save_checkpoint(tmp_path / name, "Qwen2") for name in ("plain", "stored"))
    tensors = load_file(stored / "model.safetensors")
    for name in linear_shapes(read_config(stored)):
        weight = tensors.pop(f"{name}.weight")
        tensors |= {f"{name}.weight{part}": kept for part, kept in as_bitsandbytes_saves(weight).items()}
    save_file(tensors, stored / "model.safetensors", metadata={"format": "pt"})
    edit_config(stored, quantization_config=QUANTISED)
    return plain, stored


def test_it_has_the_bits_of_the_published_one_quantised_here(folders: tuple[Path, Path], tmp_path: Path) -> None:
    plain, stored = folders
    assert check_checkpoint(stored).stored_quantization == "nf4"
    expected = load_decoder(plain, weight_format="nf4")
    found = load_decoder(stored, weight_format="nf4", cache_directory=tmp_path / "cache")
    for a, b in zip(run(found, MINE)[0], run(expected, MINE)[0], strict=True):
        assert torch.equal(a, b)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


@pytest.mark.parametrize("name", ["none", "fp8", "int8"])
def test_another_format_is_refused(folders: tuple[Path, Path], name: str) -> None:
    with pytest.raises(InputError, match="stored in nf4") as caught:
        load_decoder(folders[1], weight_format=name)
    assert "Write quantization: nf4" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"quant_method": "gptq"}, "weights stored as 'gptq'"),
        ({**QUANTISED, "load_in_4bit": False}, "bitsandbytes' 8-bit integers"),
        ({**QUANTISED, "bnb_4bit_quant_type": "fp4"}, "bitsandbytes' 'fp4'"),
        ({**QUANTISED, "bnb_4bit_use_double_quant": False}, "nf4 without double quantisation"),
    ],
)
def test_other_methods_are_named(folders: tuple[Path, Path], settings: dict[str, Any], found: str) -> None:
    edit_config(folders[1], quantization_config=settings)
    with pytest.raises(InputError, match=found):
        check_checkpoint(folders[1])


WEIGHT = "model.layers.1.mlp.up_proj.weight"


def drop_scales(tensors: dict[str, Tensor]) -> None:
    del tensors[f"{WEIGHT}.absmax"]


def cut_codes(tensors: dict[str, Tensor]) -> None:
    tensors[WEIGHT] = tensors[WEIGHT][:-1].clone()


def other_blocks(tensors: dict[str, Tensor]) -> None:
    key = f"{WEIGHT}.quant_state.bitsandbytes__nf4"
    state = bytes(tensors[key].tolist()).replace(b'"blocksize": 64', b'"blocksize": 32')
    tensors[key] = torch.tensor(list(state), dtype=torch.uint8)


def as_numbers(tensors: dict[str, Tensor]) -> None:
    tensors[WEIGHT] = torch.zeros(37, 24)


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (drop_scales, r"absmax: found no such tensor"),
        (cut_codes, r"allowed: dtype U8, 444 entries: a weight of \[37, 24\]"),
        (other_blocks, r'"blocksize": 32'),
        (as_numbers, r"dtype F32, shape \[37, 24\]"),
    ],
)
def test_damage_is_named(folders: tuple[Path, Path], edit: Any, found: str) -> None:
    edit_tensors(folders[1], edit)
    with pytest.raises(InputError, match=found):
        load_decoder(folders[1], weight_format="nf4")
