"""Weights with columns to spare: where they are, what a checkpoint fills, and that they change no plain product."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.kernels.backend import Backend, BackendChoice
from cohort.models import weight_memory
from cohort.models.checkpoint_layout import FusedTensor, Piece
from cohort.models.frozen_linear import FrozenLinear
from cohort.models.weight_memory import empty_tensor, own_columns
from cohort.models.weights import load_decoder
from tests.models.tiny_checkpoints import save_checkpoint

OUTPUT = FusedTensor("layers.0.output.weight", (Piece("o", (4096, 4096)),))
SIBLINGS = FusedTensor("layers.0.gate_up.weight", (Piece("gate", (2048, 4096)), Piece("up", (2048, 4096))))
HEAD = FusedTensor("head", (Piece("lm_head", (4096, 4096)),))


@pytest.mark.parametrize(
    ("fused", "dtype", "columns"),
    [
        (OUTPUT, torch.bfloat16, 128),
        (OUTPUT, torch.float32, 0),
        (SIBLINGS, torch.bfloat16, 0),
        (HEAD, torch.bfloat16, 0),
    ],
    ids=str,
)
def test_what_the_table_asks_for_is_there(
    monkeypatch: pytest.MonkeyPatch, fused: FusedTensor, dtype: torch.dtype, columns: int
) -> None:
    choice = BackendChoice(backend=Backend.TRITON, reason="test")
    monkeypatch.setattr(weight_memory, "describe_backend", lambda device: choice)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(weight_memory, "spare_columns", lambda gpu, **_: 128 if gpu == "Some GPU" else 0)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda shape, **options: empty(shape, **{**options, "device": "meta"}))
    tensor = empty_tensor(fused, dtype=dtype, device="cuda")
    assert tensor.shape == (4096, 4096 + columns)
    assert own_columns(tensor, fused).shape == fused.shape
    assert empty_tensor(fused, dtype=dtype, device="cpu").shape == fused.shape


def test_a_loaded_decoder_computes_the_same_with_columns_to_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_checkpoint(tmp_path, "Llama")
    plain = load_decoder(folder)

    def roomy(fused: FusedTensor, *, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
        more = 16 if fused.name.endswith(("output.weight", "down.weight")) else 0
        return torch.full((*fused.shape[:-1], fused.shape[-1] + more), torch.nan, dtype=dtype, device=device)

    monkeypatch.setattr("cohort.models.weights.empty_tensor", roomy)
    spacious = load_decoder(folder)
    assert spacious.linears == plain.linears
    # two layers, columns of o and down, float32
    assert spacious.num_bytes == plain.num_bytes + 2 * 2 * 16 * plain.config.hidden_size * 4
    x = torch.randn(16, plain.config.intermediate_size)
    for ours, theirs in zip(spacious.layers, plain.layers, strict=True):
        torch.testing.assert_close(ours.mlp.down(x, None), theirs.mlp.down(x, None), rtol=1e-5, atol=1e-6)


def test_an_augmented_product_takes_the_first_columns_to_spare() -> None:
    wide, bias = torch.randn(6, 20, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    frozen = FrozenLinear(wide, bias, in_features=12)
    assert (frozen.in_features, frozen.out_features) == (12, 6)
    x = torch.randn(5, 15, dtype=torch.float64)
    torch.testing.assert_close(frozen.forward_augmented(x), x @ wide[:, :15].T + bias)
    assert frozen.spare_NC is not None
    assert frozen.spare_NC.data_ptr() == wide[:, 12:].data_ptr()
    assert FrozenLinear(wide).spare_NC is None
