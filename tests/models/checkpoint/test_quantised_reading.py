"""Reading a checkpoint for a format: siblings are quantised one by one, everything else keeps the model's dtype."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cohort.core.errors import InputError
from cohort.models.checkpoint import quantised_reading
from cohort.models.checkpoint.checkpoint_reading import FusedContent
from cohort.models.checkpoint.quantised_files import QuantisedFiles
from cohort.models.checkpoint.quantised_reading import read_quantised
from cohort.models.checkpoint.safetensors_files import read_headers
from cohort.models.checkpoint_layout import checkpoint_layout
from cohort.models.config_file import read_config
from cohort.models.weight_formats import WEIGHT_FORMATS
from cohort.models.weight_formats.kinds.fp8 import FORMAT
from tests.models.fixtures.tiny_checkpoints import edit_tensors, save_checkpoint

CPU = torch.device("cpu")
FORMATS = sorted(name for name, kept in WEIGHT_FORMATS.items() if kept.quantisation is not None)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def test_linears_are_quantised_by_checkpoint_tensor(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "Qwen2")
    stored, layout = read_headers(folder).tensors, checkpoint_layout(read_config(folder))
    assert FORMAT.quantisation is not None
    tensors = load_file(folder / "model.safetensors")
    read = read_quantised(
        layout,
        stored,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        quantisation=FORMAT.quantisation,
        cache=None,
    )
    found = {fused.name: content for fused, content in read}
    pieces = found["layers.1.qkv.weight"]
    assert isinstance(pieces, list)
    for piece, name in zip(pieces, "qkv", strict=True):
        expected = FORMAT.quantisation.quantise(tensors[f"model.layers.1.self_attn.{name}_proj.weight"])
        assert torch.equal(piece["codes"].float(), expected["codes"].float())
        assert torch.equal(piece["scales"], expected["scales"])
    for name in ("embed", "layers.0.qkv.bias", "norm"):
        content = found[name]
        assert isinstance(content, torch.Tensor)
        assert content.dtype == torch.bfloat16


def contents(
    folder: Path, name: str, *, most_ahead: int, cache: QuantisedFiles | None = None, device: str = "cpu"
) -> dict[str, FusedContent]:
    quantisation = WEIGHT_FORMATS[name].quantisation
    assert quantisation is not None
    read = read_quantised(
        checkpoint_layout(read_config(folder)),
        read_headers(folder).tensors,
        dtype=torch.float32,
        device=torch.device(device),
        quantisation=quantisation,
        cache=cache,
        is_written=True,
        most_ahead=most_ahead,
    )
    return {fused.name: content for fused, content in read}


def files_of(folder: Path, cache: Path, name: str) -> QuantisedFiles:
    return QuantisedFiles(cache, files=[folder / "model.safetensors"], weight_format=WEIGHT_FORMATS[name])


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(found: dict[str, FusedContent], expected: dict[str, FusedContent]) -> None:
    assert list(found) == list(expected)
    for name, content in expected.items():
        other = found[name]
        if isinstance(content, torch.Tensor):
            assert isinstance(other, torch.Tensor)
            assert torch.equal(other, content)
            continue
        assert not isinstance(other, torch.Tensor)
        for piece, own in zip(other, content, strict=True):
            assert piece.keys() == own.keys()
            for part in own:
                assert (piece[part].dtype, piece[part].shape) == (own[part].dtype, own[part].shape)
                # a shape comes on the host, or on a device from the cache
                assert bytes_of(piece[part]) == bytes_of(own[part])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("most_ahead", [1, 3, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_is_copied_ahead_is_the_same(
    tmp_path: Path, name: str, most_ahead: int, dtype: torch.dtype, device: str
) -> None:
    folder = save_checkpoint(tmp_path / "model", "Qwen2")
    edit_tensors(folder, lambda tensors: tensors.update({key: own.to(dtype) for key, own in tensors.items()}))
    expected = contents(folder, name, most_ahead=0, device=device)
    assert_same(contents(folder, name, most_ahead=most_ahead, device=device), expected)
    # what is written, and what is read, by threads
    for num_absent in (8, 0):
        files = files_of(folder, tmp_path / "cache", name)
        assert_same(contents(folder, name, most_ahead=most_ahead, cache=files, device=device), expected)
        assert len(files.absent) == num_absent


def test_weights_beyond_a_limit_are_not_copied_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_checkpoint(tmp_path, "Llama")
    expected = contents(folder, "fp8", most_ahead=0)
    monkeypatch.setattr(quantised_reading, "_MOST_PASSING_BYTES", 1)
    assert_same(contents(folder, "fp8", most_ahead=1000), expected)


@pytest.mark.parametrize("most_ahead", [0, 4])
def test_files_of_the_cache_that_are_damaged_are_quantised_in_their_place(tmp_path: Path, most_ahead: int) -> None:
    folder, cache = save_checkpoint(tmp_path / "model", "Llama"), tmp_path / "cache"
    expected = contents(folder, "int8", most_ahead=0, cache=files_of(folder, cache, "int8"))
    damaged = sorted(cache.rglob("*.safetensors"))
    content = bytearray(damaged[0].read_bytes())
    content[-1] ^= 1
    damaged[0].write_bytes(content)
    damaged[1].write_bytes(damaged[1].read_bytes()[:-8])
    damaged[2].write_bytes(damaged[3].read_bytes())
    damaged[4].unlink()
    files = files_of(folder, cache, "int8")
    assert_same(contents(folder, "int8", most_ahead=most_ahead, cache=files), expected)
    assert sorted(files.absent) == [damaged[place].stem for place in (0, 1, 2, 4)]
    # they are whole now
    files = files_of(folder, cache, "int8")
    assert_same(contents(folder, "int8", most_ahead=most_ahead, cache=files), expected)
    assert files.absent == []


@pytest.mark.parametrize("most_ahead", [0, 4])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, most_ahead: int) -> None:
    folder = save_checkpoint(tmp_path, "Llama")
    stored, file = read_headers(folder).tensors, folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert FORMAT.quantisation is not None
    read = read_quantised(
        checkpoint_layout(read_config(folder)),
        stored,
        dtype=torch.float32,
        device=CPU,
        quantisation=FORMAT.quantisation,
        cache=None,
        most_ahead=most_ahead,
    )
    with pytest.raises(InputError, match="a damaged file"):
        list(read)
