"""Adapters as PEFT stores them: there and back again, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_config import adapter_config
from cohort.adapters.peft_files.peft_format import (
    PeftAdapter,
    peft_tensors,
    rank_rows_from_peft,
    read_adapter,
    serialised_weights,
    weight_parts,
)
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError

LAYOUT = AdapterLayout({"model.layers.0.q_proj": (4, 6), "model.layers.0.v_proj": (4, 2)})
SPEC = AdapterSpec(r=3, lora_alpha=6.0, lora_dropout=0.1, use_rslora=True)


def save(folder: Path, rows: torch.Tensor, **changes: object) -> Path:
    config = adapter_config(SPEC, base_model="base", target_modules=["q_proj", "v_proj"]) | changes
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(serialised_weights(LAYOUT, SPEC, rows))
    return folder


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    rows = torch.randn(3, LAYOUT.width)
    adapter = read_adapter(save(tmp_path, rows))
    assert adapter.spec == SPEC
    assert adapter.modules == tuple(LAYOUT.linears)
    assert torch.equal(rank_rows_from_peft(LAYOUT, adapter), rows)
    a, b = adapter.factors("model.layers.0.v_proj", shape=(4, 2))
    assert (a.shape, b.shape) == ((3, 4), (2, 3))


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, use_dora=True), replace(SPEC, r=1)])
def test_the_parts_are_the_bytes_that_safetensors_writes(spec: AdapterSpec) -> None:
    # names of several lengths: the header has any length, and linears are in another order than their names
    layout = AdapterLayout({"model.layers.10.q_proj": (4, 6), "model.layers.9.v_proj": (5, 2), "a": (3, 3)})
    rows = torch.randn(spec.num_rows, layout.width)
    assert b"".join(weight_parts(layout, spec, rows)) == serialised_weights(layout, spec, rows)


def test_linears_that_an_adapter_lacks_stay_zero() -> None:
    rows = torch.randn(3, LAYOUT.width)
    tensors = {name: tensor for name, tensor in peft_tensors(LAYOUT, SPEC, rows).items() if "q_proj" in name}
    found = rank_rows_from_peft(LAYOUT, PeftAdapter(spec=SPEC, tensors=tensors))
    assert torch.equal(found[:, :10], rows[:, :10])
    assert not found[:, 10:].any()


def test_an_adapter_of_another_model_is_refused() -> None:
    other = AdapterLayout({"model.layers.0.q_proj": (4, 7), "model.layers.9.q_proj": (4, 6)})
    adapter = PeftAdapter(spec=SPEC, tensors=peft_tensors(other, SPEC, torch.zeros(3, other.width)))
    with pytest.raises(InputError) as caught:
        rank_rows_from_peft(LAYOUT, adapter)
    # one cause, one problem
    (problem,) = caught.value.problems
    assert "the first of 2 linears that do not fit" in problem.found


@pytest.mark.parametrize(
    "change", [{"peft_type": "IA3"}, {"modules_to_save": ["norm"]}, {"init_lora_weights": "pissa"}]
)
def test_what_is_not_plain_lora_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(InputError, match="plain LoRA"):
        read_adapter(save(tmp_path, torch.zeros(3, LAYOUT.width), **change))


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_adapter(tmp_path)
    assert len(caught.value.problems) == 2
    save(tmp_path, torch.zeros(3, LAYOUT.width))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match=r"model.safetensors: found a damaged file[\s\S]*`cohort resume` that run"):
        read_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"r": 4,')
    with pytest.raises(InputError, match=r"adapter_config.json: found a damaged file"):
        read_adapter(tmp_path)
    save(tmp_path, torch.zeros(3, LAYOUT.width))
    (tmp_path / "adapter_config.json").write_text("[1]")
    with pytest.raises(InputError, match=r"adapter_config.json: found a damaged file.*mapping, not list"):
        read_adapter(tmp_path)


@pytest.mark.parametrize(("key", "value", "found"), [("r", None, "no such key"), ("lora_alpha", "two", "'two'")])
def test_a_configuration_without_its_numbers_names_the_key(tmp_path: Path, key: str, value: object, found: str) -> None:
    folder = save(tmp_path, torch.zeros(3, LAYOUT.width))
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config[key] = value
    path.write_text(json.dumps({name: each for name, each in config.items() if each is not None or name != key}))
    with pytest.raises(InputError, match=rf"adapter_config.json: {key}: found {found}"):
        read_adapter(folder)
