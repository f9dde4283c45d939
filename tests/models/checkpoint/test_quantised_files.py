"""Quantised weights on disk: the second load reads them, and damage or another checkpoint makes them absent."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.kernels import device_blocks
from cohort.models.checkpoint import quantised_files
from cohort.models.checkpoint.quantised_files import QuantisedFiles
from cohort.models.decoder import Decoder
from cohort.models.weight_formats import WEIGHT_FORMATS
from cohort.models.weights import load_decoder
from tests.models.fixtures.tiny_checkpoints import edit_tensors, save_checkpoint
from tests.models.test_decoder import MINE, run

CPU = torch.device("cpu")
FORMATS = sorted(name for name, kept in WEIGHT_FORMATS.items() if kept.quantisation is not None)


def assert_same(found: Decoder, expected: Decoder) -> None:
    for a, b in zip(run(found, MINE)[0], run(expected, MINE)[0], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", FORMATS)
def test_the_second_load_reads_what_the_first_kept(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = save_checkpoint(tmp_path / "model", "Qwen2"), tmp_path / "cache"
    expected = load_decoder(folder, weight_format=name)
    first = written(folder, weight_format=name, cache_directory=cache)
    kept = WEIGHT_FORMATS[name].quantisation
    assert kept is not None
    with monkeypatch.context() as patched:
        # a frozen record: its function is replaced only for this load
        patched.setitem(kept.__dict__, "quantise", None)
        second = load_decoder(folder, weight_format=name, cache_directory=cache)
    assert_same(first, expected)
    assert_same(second, expected)


def written(*args: Any, **keys: Any) -> Decoder:
    """Return a decoder whose quantised weights are in the cache."""
    found = load_decoder(*args, **keys)
    for thread in threading.enumerate():
        if thread.name == "cohort-quantised":
            thread.join()
    return found


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", FORMATS)
def test_what_was_written_from_products_is_read_on_their_device(
    tmp_path: Path, name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cache = save_checkpoint(tmp_path / "model", "Qwen2"), tmp_path / "cache"
    kept = WEIGHT_FORMATS[name].quantisation
    assert kept is not None
    disassemble = kept.disassemble
    assert disassemble is not None

    def bytes_of(decoder: Decoder) -> list[bytes]:
        products = [layer.linears[3].frozen for layer in decoder.layers]
        parts = [part for product in products for part in disassemble(product, [product.out_features])]
        return [
            tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for own in parts for tensor in own.values()
        ]

    # many blocks, each a wait for the device
    monkeypatch.setattr(device_blocks, "BUFFER_BYTES", 64)
    expected = load_decoder(folder, weight_format=name, device=device)
    first = load_decoder(folder, weight_format=name, device=device, cache_directory=cache)
    while any(thread.name == "cohort-quantised" for thread in threading.enumerate()):
        record_a_graph() if device == "cuda" else time.sleep(0.01)
    with monkeypatch.context() as patched:
        patched.setitem(kept.__dict__, "quantise", None)
        second = load_decoder(folder, weight_format=name, device=device, cache_directory=cache)
    assert bytes_of(first) == bytes_of(second) == bytes_of(expected)


def record_a_graph() -> None:
    graph, x = torch.cuda.CUDAGraph(), torch.ones(8, device="cuda")
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = x * 2
    graph.replay()
    assert y.tolist() == [2.0] * 8


def double_a_weight(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.self_attn.q_proj.weight"].mul_(2)


def test_damaged_files_and_changed_checkpoints_count_as_absent(tmp_path: Path) -> None:
    folder, cache = save_checkpoint(tmp_path / "model", "Llama"), tmp_path / "cache"
    expected = written(folder, weight_format="fp8", cache_directory=cache)
    for file in cache.rglob("*.safetensors"):
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
    assert_same(written(folder, weight_format="fp8", cache_directory=cache), expected)
    for file in cache.rglob("*.safetensors"):
        file.write_bytes(b"short")
    assert_same(written(folder, weight_format="fp8", cache_directory=cache), expected)
    time.sleep(0.01)
    edit_tensors(folder, double_a_weight)
    changed = load_decoder(folder, weight_format="fp8", cache_directory=cache)
    assert_same(changed, load_decoder(folder, weight_format="fp8"))


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    folder, cache = save_checkpoint(tmp_path / "model", "Llama"), tmp_path / "cache"
    cache.write_text("a file")
    found = load_decoder(folder, weight_format="fp8", cache_directory=cache)
    assert_same(found, load_decoder(folder, weight_format="fp8"))


def test_only_the_newest_models_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised_files, "_MOST_FOLDERS", 2)
    for index in range(4):
        (tmp_path / f"{index}").write_text("")
        files = QuantisedFiles(tmp_path, files=[tmp_path / f"{index}"], weight_format=WEIGHT_FORMATS["fp8"])
        assert files.write("layers.0.qkv", {"q": {"codes": torch.zeros(3, 5)}})
        time.sleep(0.01)
    assert len(list((tmp_path / "quantised").iterdir())) == 2
    read = files.begin_reading("layers.0.qkv", ["q"], device=CPU)
    assert read is not None
    found = read()
    assert found is not None
    assert torch.equal(found["q"]["codes"], torch.zeros(3, 5))
    assert files.begin_reading("layers.1.qkv", ["q"], device=CPU) is None
    assert files.absent == ["layers.1.qkv"]
