"""Weights that are no finite numbers are found, wherever they lie and however they are stored."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cohort.core.errors import InputError
from cohort.models.checkpoint_layout import FusedTensor, Piece
from cohort.models.finite_weights import checked_weights, non_finite_weights, refusing_non_finite
from cohort.models.weights import load_decoder
from tests.models.bridge.architectures import save_tiny
from tests.models.fixtures.tiny_checkpoints import save_checkpoint


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_a_single_nan_or_infinity_is_named(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = {name: torch.ones(4, 3) for name in ("a.weight", "b.weight", "c.weight")}
    weights["b.weight"][2, 1] = math.nan
    if dtype != torch.float8_e4m3fn:
        # that format has no infinity
        weights["c.weight"][0, 0] = -math.inf
    save_file({name: tensor.to(dtype) for name, tensor in weights.items()}, tmp_path / "model.safetensors")
    expected = ["b.weight"] if dtype == torch.float8_e4m3fn else ["b.weight", "c.weight"]
    assert non_finite_weights(tmp_path) == expected


def test_large_finite_numbers_and_whole_numbers_are_fine(tmp_path: Path) -> None:
    largest = torch.full((3,), torch.finfo(torch.float32).max)
    save_file({"large": largest, "ids": torch.arange(4), "none": torch.empty(0, 3)}, tmp_path / "model.safetensors")
    assert non_finite_weights(tmp_path) == []


def test_every_file_of_a_split_model_is_read_once(tmp_path: Path) -> None:
    bad = torch.tensor([math.inf])
    places = {}
    for number in (1, 2):
        file = f"model-0000{number}-of-00002.safetensors"
        names = [f"layers.{number}.{part}" for part in ("bad", "good")]
        save_file({names[0]: bad, names[1]: torch.ones(2)}, tmp_path / file)
        places.update(dict.fromkeys(names, file))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert non_finite_weights(tmp_path) == ["layers.1.bad", "layers.2.bad"]


@pytest.mark.parametrize("weight_format", ["none", "int8", "nf4", "fp8"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_loading_names_each_tensor_that_is_not_finite(tmp_path: Path, weight_format: str, value: float) -> None:
    folder = save_checkpoint(tmp_path / "model", "Llama")
    load_decoder(folder, weight_format=weight_format)
    weights = load_file(folder / "model.safetensors")
    # the second of three fused siblings, and a norm
    bad = ["model.layers.1.self_attn.k_proj.weight", "model.norm.weight"]
    for name in bad:
        weights[name].view(-1)[-1] = value
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(InputError) as caught:
        load_decoder(folder, weight_format=weight_format)
    assert {str(problem.where) for problem in caught.value.problems} == {
        f"{folder / 'model.safetensors'}: {name}" for name in bad
    }
    assert all(problem.found == "NaN or infinite weights" for problem in caught.value.problems)


def test_a_check_reads_a_small_model_whole_and_the_same_share_of_each_tensor_of_a_large_one(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "model", "Llama")
    size = (folder / "model.safetensors").stat().st_size
    whole = checked_weights(folder)
    assert (whole.read_bytes, whole.total_bytes, whole.problems) == (size, size, ())
    assert whole.text.startswith("all finite (")
    part = checked_weights(folder, most_bytes=size // 4)
    assert size // 5 < part.read_bytes < size // 2
    assert part.text.endswith("that were read here; a run looks at all of them")
    weights = load_file(folder / "model.safetensors")
    # the beginning, the middle and the end of a tensor are read whatever the share is
    for name, row in (
        ("model.embed_tokens.weight", 0),
        ("lm_head.weight", 33),
        ("model.layers.0.mlp.up_proj.weight", 36),
    ):
        weights[name][row, 0] = math.nan
    save_file(weights, folder / "model.safetensors")
    assert len(checked_weights(folder, most_bytes=size // 4).problems) == 3


def test_many_bad_tensors_are_counted(tmp_path: Path) -> None:
    save_file({f"layers.{n}": torch.tensor([math.inf]) for n in range(9)}, tmp_path / "model.safetensors")
    problems = checked_weights(tmp_path).problems
    assert len(problems) == 5
    assert problems[-1].found == "NaN or infinite weights, as in 4 more tensors"


def test_a_model_that_transformers_computes_is_looked_at_as_well(tmp_path: Path) -> None:
    folder = save_tiny("seed_oss", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("mlp.up_proj.weight"))
    weights[name][0, 0] = math.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=f"{name}: found NaN or infinite weights"):
        load_decoder(folder)


@pytest.mark.parametrize("value", [math.nan, -math.nan, 448.0, 0.0])
def test_codes_of_8_bits_are_looked_at_where_their_scale_says_nothing(tmp_path: Path, value: float) -> None:
    codes = torch.full((4, 3), 2.0)
    codes[2, 1] = value
    kept = {"codes": codes.to(torch.float8_e4m3fn), "scales": torch.ones(4)}
    fused = FusedTensor(name="layers.0.down.weight", pieces=(Piece(key="a.weight", shape=(4, 3)),))
    read = refusing_non_finite([(fused, [kept])], {})
    if math.isnan(value):
        with pytest.raises(InputError, match=r"a\.weight: found NaN or infinite weights"):
            list(read)
    else:
        assert len(list(read)) == 1
