"""Weights that are no finite numbers are found, wherever they lie and however they are stored."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cohort.models.finite_weights import non_finite_weights


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
