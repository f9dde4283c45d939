"""The adapter that trials are held to: read for a model, without dropout, and refused where it does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.adapter_digest import adapter_digest
from cohort.adapters.peft_files.peft_config import adapter_config
from cohort.adapters.peft_files.peft_format import serialised_weights
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError
from cohort.data.tokenised import ReferenceFiles
from cohort.models.weights import load_decoder
from cohort.training.passes import Passes
from cohort.training.reference.reference_adapter import read_reference_adapter
from tests.training.small_models import save_llama


def test_it_is_read_as_it_computes(tmp_path: Path) -> None:
    save_llama(tmp_path / "model", num_layers=1)
    decoder = load_decoder(tmp_path / "model", dtype="float32", device="cpu")
    layout = AdapterLayout({name: shape for name, shape in decoder.linears.items() if "o_proj" in name})
    spec, rows_rD = AdapterSpec(r=2, lora_alpha=4, lora_dropout=0.3), torch.randn(2, layout.width)
    config = adapter_config(spec, base_model="base", target_modules=["o_proj"])
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").write_bytes(serialised_weights(layout, spec, rows_rD))
    found = read_reference_adapter(tmp_path, decoder.config)
    # a reference drops nothing
    assert (found.spec.lora_dropout, found.spec.scale) == (0.0, 2.0)
    assert list(found.layout.linears) == list(layout.linears)
    assert torch.equal(found.weights_rD, rows_rD)
    save_llama(tmp_path / "other", num_layers=1, hidden_size=72)
    other = load_decoder(tmp_path / "other", dtype="float32", device="cpu")
    with pytest.raises(InputError, match="Use the base model that the adapter was trained on"):
        read_reference_adapter(tmp_path, other.config)


def test_another_adapter_in_its_place_is_refused(tmp_path: Path) -> None:
    save_llama(tmp_path / "model", num_layers=1)
    decoder = load_decoder(tmp_path / "model", dtype="float32", device="cpu")
    layout, spec = AdapterLayout(dict(decoder.linears)), AdapterSpec(r=2, lora_alpha=4)
    config = adapter_config(spec, base_model="base", target_modules=["all-linear"])
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))

    def write(value: float) -> str:
        weights = serialised_weights(layout, spec, torch.full((2, layout.width), value))
        (tmp_path / "adapter_model.safetensors").write_bytes(weights)
        return adapter_digest(tmp_path)

    first = write(1.0)
    bank = AdapterBank(layout, num_slots=1, num_rank_rows=16, dtype=torch.float32)
    memory: Any = None
    passes = Passes(decoder, bank, memory=memory, captured=None)
    kept = passes.of_adapter(ReferenceFiles(str(tmp_path), first))
    second = write(2.0)
    # a task that joins has the new adapter, and one that began with the other keeps it
    joined = passes.of_adapter(ReferenceFiles(str(tmp_path), second))
    assert passes.of_adapter(ReferenceFiles(str(tmp_path), first)) is kept
    assert kept._bank.read(0).weights.unique().tolist() == [1.0]
    assert joined._bank.read(0).weights.unique().tolist() == [2.0]
    with pytest.raises(InputError, match=r"objective\.reference_adapter.*another adapter than when the task began"):
        read_reference_adapter(tmp_path, decoder.config, sha256=first)
