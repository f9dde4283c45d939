"""A decoder of zeros has the layers, names and sizes of the model's, and little memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from cohort.models.stand_in import stand_in_decoder
from cohort.models.weights import load_decoder
from tests.models.tiny_checkpoints import save_checkpoint


def test_it_has_the_linears_of_the_model_and_shares_their_memory(tmp_path: Path) -> None:
    model = load_decoder(save_checkpoint(tmp_path, "Qwen2", num_hidden_layers=3))
    found = stand_in_decoder(model.config, dtype=torch.float32, device="cpu")
    assert found.linears == model.linears
    assert [product.in_features for product in found.products] == [product.in_features for product in model.products]
    first, last = (found.weight_of(f"model.layers.{layer}.mlp.down_proj") for layer in (0, 2))
    assert first.shape == last.shape == model.weight_of("model.layers.0.mlp.down_proj").shape
    down: list[Any] = [layer.mlp.down.frozen for layer in found.layers]
    assert len({product._weight_NK.data_ptr() for product in down}) == 1
