"""The weights that trials begin with are those of the adapter's file, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.adapters.bank import AdapterBank
from cohort.adapters.initial_adapter import AdapterStart
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.adapter_digest import adapter_digest
from cohort.adapters.peft_files.peft_config import adapter_config
from cohort.adapters.peft_files.peft_format import serialised_weights
from cohort.adapters.peft_files.start_weights import start_weights
from cohort.adapters.spec import AdapterSpec, VariantError
from cohort.core.errors import InputError
from cohort.training.fresh_weights import FreshWeights

LINEARS = {"model.layers.0.self_attn.q_proj": (6, 4), "model.layers.1.self_attn.q_proj": (6, 4)}


def write_start(folder: Path, weights_rD: torch.Tensor) -> AdapterStart:
    spec, layout = AdapterSpec(r=2, lora_alpha=4.0), AdapterLayout(LINEARS)
    config = adapter_config(spec, base_model="base", target_modules=["q_proj"])
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(serialised_weights(layout, spec, weights_rD))
    return AdapterStart(directory=str(folder), sha256=adapter_digest(folder), r=2, lora_alpha=4.0, use_rslora=False)


def test_what_the_bank_gets_is_what_the_file_holds(tmp_path: Path) -> None:
    layout = AdapterLayout(LINEARS)
    weights_rD = torch.randn(2, layout.width)
    start = write_start(tmp_path, weights_rD)
    bank = AdapterBank(layout, num_slots=1, num_rank_rows=16, dtype=torch.float32)
    decoder: Any = SimpleNamespace(weight_of=None)
    fresh, spec = FreshWeights(bank, decoder), AdapterSpec(r=2, lora_alpha=4.0, start=start)
    fresh.draw_ahead([(spec, 7)])
    assert torch.equal(fresh.of(spec, 7), weights_rD)
    # no seed changes them
    assert fresh.of(spec, 8) is fresh.of(spec, 7)
    assert not torch.equal(fresh.of(AdapterSpec(r=2, lora_alpha=4.0), 7), weights_rD)
    # a stage of a pipeline has a part of the linears
    second = AdapterLayout({name: shape for name, shape in LINEARS.items() if ".1." in name})
    assert torch.equal(start_weights(second, start), weights_rD[:, 10:])


def test_files_that_changed_are_refused(tmp_path: Path) -> None:
    start = write_start(tmp_path, torch.ones(2, 20))
    write_start(tmp_path, torch.zeros(2, 20))
    with pytest.raises(InputError, match=r"lora\.adapter_name_or_path.*another adapter than when the task began"):
        start_weights(AdapterLayout(LINEARS), start)


def test_another_rank_or_variant_cannot_begin_with_it(tmp_path: Path) -> None:
    start = write_start(tmp_path, torch.ones(2, 20))
    fitting: dict[str, Any] = {"r": 2, "lora_alpha": 4.0, "start": start}
    for values in ({"r": 4}, {"use_dora": True}, {"init_lora_weights": "pissa"}):
        with pytest.raises(VariantError, match="with adapter_name_or_path"):
            AdapterSpec(**{**fitting, **values})
