"""VeRA adapters in PEFT's files: PEFT's own, with and without projections, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import VeraConfig, get_peft_model
from safetensors.torch import save_file

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_config import adapter_config
from cohort.adapters.peft_files.peft_format import rank_rows_from_peft, read_adapter, serialised_weights
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.vera_settings import VectorAdapter
from cohort.core.errors import InputError

LAYOUT = AdapterLayout({"q_proj": (12, 6), "down_proj": (8, 20)})


class TwoLinears(torch.nn.Module):
    """A model with the linears of the layout."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.down_proj = torch.nn.Linear(12, 6), torch.nn.Linear(8, 20)


def test_a_file_of_peft_is_read_as_the_lora_that_it_computes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = get_peft_model(TwoLinears(), VeraConfig(r=4, target_modules=["q_proj", "down_proj"]))
    for name, parameter in model.named_parameters():
        if "vera_lambda" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path)
    adapter = read_adapter(tmp_path)
    assert (adapter.spec.use_vera, adapter.spec.scale, adapter.modules) == (None, 1.0, ("down_proj", "q_proj"))
    rows_rD = rank_rows_from_peft(LAYOUT, adapter)
    for name, columns in LAYOUT.columns.items():
        delta = rows_rD[:, columns.b].T @ rows_rD[:, columns.a]
        expected = model.base_model.model.get_submodule(name).get_delta_weight("default")
        # one product in another order
        torch.testing.assert_close(delta, expected, rtol=1e-5, atol=1e-6)


def save(folder: Path, *, save_projection: bool) -> Path:
    folder.mkdir()
    spec = AdapterSpec(r=3, lora_alpha=1.0, use_vera=VectorAdapter(save_projection=save_projection))
    weights_1D = torch.randn(1, LAYOUT.width, generator=torch.Generator().manual_seed(0))
    config = adapter_config(spec, base_model="base", target_modules=["q_proj", "down_proj"])
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(serialised_weights(LAYOUT, spec, weights_1D))
    return folder


def test_projections_are_drawn_again_where_they_are_not_saved(tmp_path: Path) -> None:
    with_them, without = (save(tmp_path / str(saves), save_projection=saves) for saves in (True, False))
    size, smaller = ((folder / "adapter_model.safetensors").stat().st_size for folder in (with_them, without))
    assert size > smaller
    first, second = (rank_rows_from_peft(LAYOUT, read_adapter(folder)) for folder in (with_them, without))
    assert torch.equal(first, second)


def test_a_file_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "adapter", save_projection=False)
    tensors = dict(read_adapter(folder).tensors)
    # as a file of PEFT without projections, whose widths the model alone knows
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(InputError, match="no vera_A and vera_B"):
        read_adapter(folder)
    tensors.pop("base_model.model.q_proj.vera_lambda_d")
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"vera_in_features": "12"})
    with pytest.raises(InputError, match="no vera_lambda_d of q_proj"):
        read_adapter(folder)
