"""A GGUF file read back by gguf's own reader is the adapter: its change of each weight, in llama.cpp's order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from cohort.adapter_files.gguf_file import GgufType, write_gguf
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.modules_to_save.saved_modules import SavedModules
from cohort.adapters.peft_files.peft_format import PeftAdapter, peft_tensors
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import BlockDiagonal
from cohort.core.errors import InputError
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config import DecoderConfig
from cohort.models.families import FAMILIES
from tests.training.small_models import save_llama, save_qwen2

# llama.cpp's names of the seven linears of a layer
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
SPECS = {
    "plain": AdapterSpec(r=4, lora_alpha=8.0),
    "rslora": AdapterSpec(r=4, lora_alpha=8.0, use_rslora=True),
    "patterns": AdapterSpec(r=4, lora_alpha=8.0, rank_pattern=(("q_proj", 2),), alpha_pattern=(("k_proj", 5.0),)),
    "blocks": AdapterSpec(r=4, lora_alpha=8.0, use_bdlora=BlockDiagonal(nblocks=2)),
}


def model(folder: Path, family: str) -> DecoderConfig:
    {"llama": save_llama, "qwen2": save_qwen2}[family](folder)
    return check_checkpoint(folder)


def adapter_for(config: DecoderConfig, spec: AdapterSpec) -> PeftAdapter:
    layout = AdapterLayout(linear_shapes(config))
    weights_rD = torch.randn(spec.num_rows, layout.width, generator=torch.Generator().manual_seed(0))
    return PeftAdapter(spec=spec, tensors=peft_tensors(layout, spec, weights_rD))


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    return fields, {tensor.name: torch.tensor(np.array(tensor.data)) for tensor in reader.tensors}


def unpaired(delta_NK: Tensor, *, num_heads: int) -> Tensor:
    """Return rows of llama.cpp's order, pair after pair, as transformers has them: first halves, then second ones."""
    head_dim = delta_NK.shape[0] // num_heads
    order = [
        head * head_dim + 2 * (row % (head_dim // 2)) + row // (head_dim // 2)
        for head in range(num_heads)
        for row in range(head_dim)
    ]
    return delta_NK[order]


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", list(GgufType))
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_what_is_read_back_is_the_adapter(tmp_path: Path, family: str, kind: GgufType, spec: AdapterSpec) -> None:
    config = model(tmp_path, family)
    adapter, shapes = adapter_for(config, spec), linear_shapes(config)
    path = tmp_path / "adapter.gguf"
    write_gguf(adapter, path, config=config, base_model="org/base", kind=kind)
    fields, tensors = read(path)
    assert fields["GGUF.version"] == 3
    assert fields["general.type"] == "adapter"
    assert fields["general.architecture"] == family
    assert fields["adapter.type"] == "lora"
    assert fields["adapter.lora.alpha"] == 8.0
    assert len(tensors) == 2 * len(shapes)
    for module, (in_features, out_features) in shapes.items():
        _, _, layer, linear = module.split(".", 3)
        name = f"blk.{layer}.{NAMES[linear]}.weight"
        a, b = tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"]
        assert {a.dtype, b.dtype} == {torch.float32 if kind is GgufType.F32 else torch.float16}
        assert (a.shape[1], b.shape[0], a.shape[0]) == (in_features, out_features, b.shape[1])
        # as llama.cpp scales it
        found = fields["adapter.lora.alpha"] / b.shape[1] * b.float() @ a.float()
        if family == "llama" and linear.endswith(("q_proj", "k_proj")):
            heads = config.num_heads if linear.endswith("q_proj") else config.num_kv_heads
            assert heads > 1, "with one head no order of heads is tested"
            found = unpaired(found, num_heads=heads)
        a_rK, b_Nr = adapter.factors(module, shape=(in_features, out_features))
        expected = spec.scale_of(module) * b_Nr @ a_rK
        error = (found - expected).norm() / expected.norm()
        assert error < (1e-6 if kind is GgufType.F32 else 1e-3), module


def test_rotating_neighbours_of_moved_rows_is_rotating_halves(tmp_path: Path) -> None:
    """The order of rows is right because attention scores are: those of q and k rotated as each side does it."""
    config = model(tmp_path, "llama")
    adapter, path = adapter_for(config, SPECS["plain"]), tmp_path / "adapter.gguf"
    write_gguf(adapter, path, config=config, base_model="org/base", kind=GgufType.F32)
    _, tensors = read(path)
    x_TK = torch.randn(5, config.hidden_size, generator=torch.Generator().manual_seed(1))
    angles = torch.outer(torch.arange(5.0), torch.tensor(config.rotary.inverse_frequencies))

    def heads(delta_NK: Tensor, *, num_heads: int) -> Tensor:
        return (x_TK @ delta_NK.T).reshape(len(x_TK), num_heads, -1).transpose(0, 1)

    def by_halves(states: Tensor) -> Tensor:
        first, second = states.chunk(2, dim=-1)
        return torch.cat(
            [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
        )

    def by_neighbours(states: Tensor) -> Tensor:
        first, second = states[..., ::2], states[..., 1::2]
        return torch.stack(
            [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
        ).flatten(-2)

    scores = []
    for rotate, of_file in ((by_halves, False), (by_neighbours, True)):
        rotated = []
        for linear, num_heads in (("q_proj", config.num_heads), ("k_proj", config.num_kv_heads)):
            module = f"model.layers.0.self_attn.{linear}"
            a, b = adapter.factors(module, shape=linear_shapes(config)[module])
            if of_file:
                name = f"blk.0.attn_{linear[0]}.weight"
                a, b = tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"]
            rotated.append(rotate(heads(b @ a, num_heads=num_heads)))
        queries, keys = rotated
        keys = keys.repeat_interleave(config.num_heads // config.num_kv_heads, dim=0)
        scores.append(queries @ keys.transpose(-1, -2))
    torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-3)


def test_every_family_has_a_name_of_llama_cpp() -> None:
    names = {family.gguf_architecture for family in FAMILIES.built_in()} - {""}
    assert names <= set(gguf.MODEL_ARCH_NAMES.values())
    # whose converter moves the rows of q and k
    assert {family.name for family in FAMILIES.built_in() if family.gguf_pairs_rotated} == {"llama", "mistral"}


def test_what_a_gguf_adapter_cannot_hold_is_refused(tmp_path: Path) -> None:
    config = model(tmp_path, "llama")
    path = tmp_path / "adapter.gguf"
    dora = adapter_for(config, replace(SPECS["plain"], use_dora=True))
    with pytest.raises(InputError, match=r"a DoRA adapter, whose magnitudes .* Write --to merged"):
        write_gguf(dora, path, config=config, base_model="m", kind=GgufType.F32)
    saved = SavedModules(names=("lm_head",), vocab_size=config.vocab_size, hidden_size=config.hidden_size, width=100)
    with pytest.raises(InputError, match=r"an adapter with a trained lm_head, which .* Write --to merged"):
        write_gguf(
            replace(dora, spec=replace(SPECS["plain"], saved=saved)),
            path,
            config=config,
            base_model="m",
            kind=GgufType.F32,
        )
    with pytest.raises(InputError, match=r"a model of type other; allowed: gemma2, llama"):
        write_gguf(dora, path, config=replace(config, family="other"), base_model="m", kind=GgufType.F32)
    large = adapter_for(config, replace(SPECS["plain"], lora_alpha=1.0))
    tensors = {name: tensor * 1e5 for name, tensor in large.tensors.items()}
    with pytest.raises(InputError, match=r"the largest of float16.* Write --outtype f32"):
        write_gguf(replace(large, tensors=tensors), path, config=config, base_model="m", kind=GgufType.F16)
