"""Every way in which the tensors of a checkpoint can be wrong is found before a weight is read."""

from __future__ import annotations

from pathlib import Path

import torch

from cohort.models.checkpoint.stored_tensors import check_checkpoint, stored_tensors
from tests.models.fixtures.tiny_checkpoints import edit_tensors, problems_of


def test_tensors_are_found_by_their_keys(checkpoint: Path) -> None:
    found = stored_tensors(checkpoint, check_checkpoint(checkpoint))
    assert found["model.layers.0.self_attn.k_proj.weight"].shape == (12, 24)
    assert {stored.file for stored in found.values()} == {checkpoint / "model.safetensors"}


def test_every_bad_tensor_is_listed_at_once(checkpoint: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"]
        del tensors["model.norm.weight"]
        tensors["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(3, 24)
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(24)
        tensors["lm_head.weight"] = torch.zeros(67, 24, dtype=torch.int8)

    edit_tensors(checkpoint, spoil)
    problems = "\n".join(problems_of(checkpoint))
    assert "model.layers.1.mlp.up_proj.weight: found no such tensor" in problems
    assert "model.norm.weight: found no such tensor" in problems
    assert "k_proj.weight: found shape [3, 24]; allowed: shape [12, 24]" in problems
    assert "q_proj.bias: found a tensor that LlamaForCausalLM" in problems
    assert "lm_head.weight: found dtype I8" in problems
    assert len(problems_of(checkpoint)) == 5
