"""Logits of PEFT's own models, from its files, on one, two and four ranks: LoRA, rsLoRA and all BD-LoRA."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import BdLoraConfig, LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_format import read_adapter
from cohort.adapters.peft_files.strict_loading import load_shard
from cohort.adapters.sharding import local_layout
from cohort.adapters.variants.block_diagonal import COLUMN_PARALLEL, ROW_PARALLEL
from cohort.data.packing import SlotSample, pack
from cohort.models.attention import PackedAttention
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.checkpoint_layout import linear_shapes
from cohort.ranks.tensor.groups import RankGroup
from cohort.ranks.tensor.tensor_decoder import load_tensor_decoder
from tests.ranks.tensor.divided_models import save_divided_qwen2
from tests.ranks.tensor.thread_group import run_threads
from tests.training.small_models import random_rows

NAMES = [*ROW_PARALLEL, *COLUMN_PARALLEL]


def blocks(nblocks: int, *, swapped: bool = False) -> BdLoraConfig:
    in_a, in_b = (COLUMN_PARALLEL, ROW_PARALLEL) if swapped else (ROW_PARALLEL, COLUMN_PARALLEL)
    return BdLoraConfig(nblocks=nblocks, target_modules_bd_a=list(in_a), target_modules_bd_b=list(in_b))


CONFIGS: list[dict[str, Any]] = [
    {"r": 8, "lora_alpha": 16},
    {"r": 5, "lora_alpha": 8, "use_rslora": True},
    {"r": 4, "lora_alpha": 12, "use_bdlora": blocks(2)},
    {"r": 8, "lora_alpha": 12, "use_bdlora": blocks(4), "use_rslora": True},
    {"r": 8, "lora_alpha": 12, "use_bdlora": blocks(8)},
    {"r": 8, "lora_alpha": 12, "use_bdlora": blocks(2, swapped=True)},
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Tensor]]:
    """A model, its adapters as PEFT saves them, and the logits [T, V] that PEFT's models give one after the other."""
    folder = tmp_path_factory.mktemp("peft")
    save_divided_qwen2(folder / "model")
    expected = []
    for index, config in enumerate(CONFIGS):
        base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float64)
        own = LoraConfig(target_modules=NAMES, **config)
        model: PeftModel = get_peft_model(base, own, autocast_adapter_dtype=False)
        torch.manual_seed(index)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                # rank rows are read as float32
                parameter.data = (0.3 * torch.randn(parameter.shape)).double()
        model.save_pretrained(folder / str(index))
        tokens = torch.from_numpy(sample(index).tokens.astype("int64"))
        with torch.no_grad():
            expected.append(model(input_ids=tokens[None]).logits[0])
    return folder, expected


def sample(index: int) -> Any:
    return random_rows(len(CONFIGS), seed=8, longest=20).sample(index)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_of_them_in_one_pass(saved: tuple[Path, list[Tensor]], size: int) -> None:
    folder, expected = saved
    layout = AdapterLayout(linear_shapes(check_checkpoint(folder / "model")))
    assert json.loads((folder / "3" / "adapter_config.json").read_text())["use_bdlora"]["nblocks"] == 4

    def on(group: RankGroup) -> Tensor:
        decoder = load_tensor_decoder(folder / "model", group, dtype=torch.float64)
        local = local_layout(layout, rank=group.rank, size=size)
        bank = AdapterBank(local, num_slots=len(CONFIGS), num_rank_rows=16 * len(CONFIGS), dtype=torch.float64)
        for index in range(len(CONFIGS)):
            adapter = read_adapter(folder / str(index))
            shard = load_shard(adapter, layout=layout, rank=group.rank, size=size)
            bank.insert(shard.spec, AdapterState(weights=shard.weights_rD))
        samples = [SlotSample(slot=index, sample=sample(index)) for index in range(len(CONFIGS))]
        batch = pack(samples, num_slots=len(CONFIGS))
        with torch.no_grad():
            hidden_TD = decoder.forward(
                batch.tokens_T,
                positions_T=batch.positions_T,
                attention=PackedAttention(batch.sequence_offsets),
                lora=bank.context(batch.segments),
            )
            return decoder.logits(hidden_TD)

    found = run_threads(size, on)
    start = 0
    for logits in expected:
        # float64 sums in another order; norms are float32 in both
        torch.testing.assert_close(found[0][start : start + len(logits)], logits, rtol=0, atol=1e-10)
        start += len(logits)
    assert all(torch.equal(own, found[0]) for own in found)
