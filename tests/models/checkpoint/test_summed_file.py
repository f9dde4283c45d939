"""A file that is written block by block is one of safetensors, with the sum that is computed where tensors are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from cohort.kernels import device_blocks
from cohort.kernels.device_blocks import OfThread
from cohort.models.checkpoint.summed_file import SUM_KEY, sum_of, write_summed


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_tensors_and_their_sum_come_back(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # several blocks for a tensor, and ends that are no whole words
    monkeypatch.setattr(device_blocks, "BUFFER_BYTES", 64)
    tensors = {
        "z/codes": torch.randn(33, 7).to(torch.float8_e4m3fn),
        "a/codes": torch.randint(-128, 127, (13, 5), dtype=torch.int8),
        "a/scales": torch.randn(33),
        "a/offset": torch.tensor(1.5),
        "a/shape": torch.tensor([33, 7]),
        # words whose sum is beyond 64 bits
        "b/large": torch.full((50,), 2**62 + 3, dtype=torch.int64),
        "c/none": torch.zeros(0, 4, dtype=torch.uint8),
    }
    there = {name: tensor.to(device) for name, tensor in tensors.items()}
    write_summed(tmp_path / "file", there, blocks=OfThread().blocks)
    found = load_file(tmp_path / "file")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert found[name].reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8))
    with safe_open(tmp_path / "file", framework="pt") as opened:
        written = opened.metadata()[SUM_KEY]
    assert written == str(sum_of(there.values())) == str(sum_of(found.values()))


def test_each_byte_counts() -> None:
    tensor = torch.arange(21, dtype=torch.uint8)
    before = sum_of([tensor])
    for place in range(len(tensor)):
        changed = tensor.clone()
        changed[place] ^= 4
        assert sum_of([changed]) != before
    assert sum_of([]) == 0


def test_other_dtypes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="complex64"):
        write_summed(tmp_path / "file", {"a": torch.zeros(2, dtype=torch.complex64)}, blocks=OfThread().blocks)
    assert not (tmp_path / "file").exists()
