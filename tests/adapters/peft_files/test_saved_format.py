"""Whole modules in PEFT's files: what PEFT writes is read, and what cannot be is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.modules_to_save.saved_modules import EMBEDDING, HEAD
from cohort.adapters.peft_files.peft_format import peft_tensors, rank_rows_from_peft, read_adapter
from cohort.core.errors import InputError
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config_file import read_config
from tests.training.small_models import save_llama, save_qwen2

pytestmark = pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")


def written_by_peft(folder: Path, **options: Any) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    config = LoraConfig(**{"r": 3, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM"} | options)
    tuned = get_peft_model(model, config)
    with torch.no_grad():
        for parameter in tuned.parameters():
            if parameter.requires_grad:
                parameter.normal_()
    tuned.save_pretrained(folder / "adapter")
    return tuned


@pytest.mark.parametrize("save_model", [save_llama, save_qwen2])
@pytest.mark.parametrize("names", [[EMBEDDING], [HEAD], ["model.embed_tokens", HEAD]])
def test_what_peft_writes_comes_back_tensor_by_tensor(tmp_path: Path, save_model: Any, names: list[str]) -> None:
    save_model(tmp_path / "model")
    written_by_peft(tmp_path, modules_to_save=names)
    adapter = read_adapter(tmp_path / "adapter")
    linears = linear_shapes(read_config(tmp_path / "model"))
    layout = AdapterLayout({name: linears[name] for name in linears if name in adapter.modules})
    spec, rows_rD = adapter.spec_in(layout), rank_rows_from_peft(layout, adapter)
    assert rows_rD.shape == (spec.num_rows, layout.width)
    found, expected = peft_tensors(layout, spec, rows_rD), load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_one_table_for_both_is_read_as_two_alike(tmp_path: Path) -> None:
    save_llama(tmp_path / "model")
    written_by_peft(tmp_path, modules_to_save=[EMBEDDING], ensure_weight_tying=True)
    adapter = read_adapter(tmp_path / "adapter")
    assert adapter.spec.saved is not None
    assert adapter.spec.saved.names == (EMBEDDING, HEAD)
    assert torch.equal(adapter.saved_table(EMBEDDING), adapter.saved_table(HEAD))


def test_other_modules_and_missing_tables_are_refused(tmp_path: Path) -> None:
    save_qwen2(tmp_path / "model")
    written_by_peft(tmp_path, modules_to_save=["norm"])
    with pytest.raises(InputError, match="modules_to_save norm"):
        read_adapter(tmp_path / "adapter")
    written_by_peft(tmp_path, modules_to_save=[HEAD])
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file({name: tensor for name, tensor in load_file(weights).items() if HEAD not in name}, weights)
    with pytest.raises(InputError, match="one table"):
        read_adapter(tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["modules_to_save"] == [HEAD]
