"""Tensors that are copied ahead are those that are read in turn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.core.errors import InputError
from cohort.models.checkpoint.checkpoint_reading import read_fused
from cohort.models.checkpoint.safetensors_files import read_headers
from cohort.models.checkpoint_layout import checkpoint_layout
from cohort.models.config_file import read_config
from tests.models.fixtures.tiny_checkpoints import save_checkpoint


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("most_ahead", [1, 3, 1000])
def test_tensors_that_are_copied_ahead_are_the_same(tmp_path: Path, dtype: torch.dtype, most_ahead: int) -> None:
    folder = save_checkpoint(tmp_path, "Qwen2")
    stored, layout = read_headers(folder).tensors, checkpoint_layout(read_config(folder))
    device = torch.device("cpu")
    in_turn = read_fused(layout, stored, dtype=dtype, device=device)
    ahead = read_fused(layout, stored, dtype=dtype, device=device, most_ahead=most_ahead)
    for (fused, content), (other, copied) in zip(in_turn, ahead, strict=True):
        assert fused == other
        assert isinstance(content, torch.Tensor)
        assert isinstance(copied, torch.Tensor)
        assert torch.equal(content, copied)


def test_a_damaged_file_is_named_where_tensors_are_copied_ahead(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "Qwen2")
    stored, layout = read_headers(folder).tensors, checkpoint_layout(read_config(folder))
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match="a damaged file"):
        list(read_fused(layout, stored, dtype=torch.float32, device=torch.device("cpu"), most_ahead=4))
