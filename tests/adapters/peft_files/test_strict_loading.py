"""Adapters are taken whole: each tensor that does not fit is named with its shape and the one expected."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.config import BdLoraConfig
from transformers import AutoModelForCausalLM

from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_format import PeftAdapter, peft_tensors, read_adapter
from cohort.adapters.peft_files.strict_loading import load_shard
from cohort.adapters.sharding import Parallelism, parallelism_of
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import COLUMN_PARALLEL, ROW_PARALLEL, BlockDiagonal
from cohort.core.errors import InputError
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.checkpoint_layout import linear_shapes
from tests.training.small_models import save_llama

LAYOUT = AdapterLayout({"l.q_proj": (8, 12), "l.o_proj": (12, 8)})
SPEC = AdapterSpec(r=4, lora_alpha=8.0, use_bdlora=BlockDiagonal(nblocks=2))


def adapter_with(**changes: torch.Tensor | None) -> PeftAdapter:
    tensors = peft_tensors(LAYOUT, SPEC, initial_weights(LAYOUT, SPEC, seed=1))
    for key, tensor in changes.items():
        name = "base_model.model." + key.replace("__", ".")
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    return PeftAdapter(spec=SPEC, tensors=tensors)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (
            {"l__q_proj__lora_B__weight": torch.zeros(12, 3)},
            "l.q_proj.lora_B.weight: found shape (12, 3); allowed: shape (12, 4), or (12, 2) in 2 blocks",
        ),
        ({"l__o_proj__lora_A__weight": torch.zeros(5, 6)}, "found shape (5, 6); allowed: shape (4, 12), or (4, 6)"),
        ({"l__q_proj__lora_A__weight": None}, "l.q_proj.lora_A.weight: found no tensor"),
        ({"l__x_proj__lora_A__weight": torch.zeros(4, 8)}, "no LoRA factor of a linear of this model"),
        ({"l__q_proj__lora_magnitude_vector": torch.zeros(8)}, "no LoRA factor of a linear of this model"),
        ({"l__q_proj__lora_A__weight": torch.zeros(4, 4)}, "found both factors in 2 blocks"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, torch.Tensor | None], found: str) -> None:
    with pytest.raises(InputError) as caught:
        load_shard(adapter_with(**changes), layout=LAYOUT, rank=0, size=2)
    assert found in str(caught.value)


def test_dense_factors_under_the_flag_are_served_as_what_they_are() -> None:
    # what PEFT trains on quantised linears
    dense = adapter_with(l__q_proj__lora_B__weight=torch.ones(12, 4))
    shard = load_shard(dense, layout=LAYOUT, rank=1, size=2)
    q = shard.layout.columns["l.q_proj"]
    delta = shard.weights_rD[:, q.b].T @ shard.weights_rD[:, q.a]
    a = dense.tensors["base_model.model.l.q_proj.lora_A.weight"]
    torch.testing.assert_close(delta, torch.ones(6, 4) @ a)


@pytest.mark.parametrize(("swapped", "size"), [(False, 2), (True, 2), (False, 1)])
def test_shards_of_an_adapter_that_peft_saved_give_pefts_change(tmp_path: Path, swapped: bool, size: int) -> None:
    save_llama(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    in_a, in_b = (COLUMN_PARALLEL, ROW_PARALLEL) if swapped else (ROW_PARALLEL, COLUMN_PARALLEL)
    blocks = BdLoraConfig(nblocks=2, target_modules_bd_a=list(in_a), target_modules_bd_b=list(in_b))
    names = [*ROW_PARALLEL, *COLUMN_PARALLEL]
    config = LoraConfig(r=6, lora_alpha=12, target_modules=names, use_bdlora=blocks, use_rslora=True)
    model = get_peft_model(model, config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path / "adapter")
    layout = AdapterLayout(linear_shapes(check_checkpoint(tmp_path / "base")))
    adapter = read_adapter(tmp_path / "adapter")
    shards = [load_shard(adapter, layout=layout, rank=rank, size=size) for rank in range(size)]
    modules = model.base_model.model.named_modules()
    before = {name: module.weight.clone() for name, module in modules if name.endswith("base_layer")}
    model.merge_adapter()
    for name in layout.linears:
        weight = model.get_submodule(f"base_model.model.{name}").base_layer.weight
        parts = []
        for shard in shards:
            columns = shard.layout.columns[name]
            parts.append(shard.spec.scale * shard.weights_rD[:, columns.b].T @ shard.weights_rD[:, columns.a])
        found = torch.cat(parts, dim=0 if parallelism_of(name) is Parallelism.COLUMN else 1)
        torch.testing.assert_close(found, weight - before[f"{name}.base_layer"], rtol=1e-4, atol=1e-5)
