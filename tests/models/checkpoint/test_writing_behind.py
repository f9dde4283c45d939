"""What is written behind a load: all of it, nothing of a model that is let go, and no half file whatever ends it."""

from __future__ import annotations

import gc
import math
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.core.errors import InputError
from cohort.kernels.device_blocks import OfThread
from cohort.models.checkpoint import quantised_files
from cohort.models.checkpoint.quantised_files import QuantisedFiles
from cohort.models.checkpoint.writing_behind import write_behind
from cohort.models.streaming.host_source import host_streaming
from cohort.models.weight_formats import WEIGHT_FORMATS
from cohort.models.weights import load_decoder
from tests.models.checkpoint.groups_behind import CPU, GROUPS, Product, begin, lacking, layout, parts_of
from tests.models.fixtures.tiny_checkpoints import edit_tensors, save_checkpoint

FORMATS = sorted(name for name, kept in WEIGHT_FORMATS.items() if kept.quantisation is not None)


def there(folder: Path) -> list[str]:
    """Names of all files of the cache, half ones among them."""
    return sorted(path.name for path in (folder / "quantised").rglob("*") if path.is_file())


@pytest.fixture
def at_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Semaphore]:
    """Each block waits until it is let through."""
    passes, blocks = threading.Semaphore(0), OfThread.blocks

    def waiting(self: OfThread, tensor: torch.Tensor) -> Iterator[memoryview]:
        for block in blocks(self, tensor):
            assert passes.acquire(timeout=60)
            yield block

    monkeypatch.setattr(OfThread, "blocks", waiting)
    yield passes
    passes.release(1000)


def test_nothing_is_begun_where_nothing_is_absent(tmp_path: Path) -> None:
    files = QuantisedFiles(tmp_path, files=[], weight_format=WEIGHT_FORMATS["int8"])
    assert write_behind(files, layout(), {}, disassemble=parts_of, device=CPU) is None


def test_a_model_that_is_let_go_is_not_written_to_its_end(tmp_path: Path, at_blocks: threading.Semaphore) -> None:
    products = {group: Product() for group in GROUPS}
    kept = [weakref.ref(product) for product in products.values()]
    writing = begin(lacking(tmp_path), products)
    products.clear()
    gc.collect()
    # a group is held while it is written, and no other
    assert sum(product() is not None for product in kept) <= 1
    at_blocks.release(10)
    writing.result(timeout=60)
    assert len(there(tmp_path)) <= 1


def test_what_another_process_has_written_meanwhile_stays(tmp_path: Path, at_blocks: threading.Semaphore) -> None:
    products = {group: Product() for group in GROUPS}
    first, second = lacking(tmp_path), lacking(tmp_path)
    at_blocks.release(2)
    begin(first, products).result(timeout=60)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    # no block is let through: nothing is read
    begin(second, products).result(timeout=60)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")} == before
    assert len(before) == 2


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    products = {group: Product() for group in GROUPS}
    begin(lacking(tmp_path), products).result(timeout=60)
    (folder,) = (tmp_path / "quantised").iterdir()
    old, new = (folder / f".x.{age}.partial" for age in ("old", "new"))
    for path in (old, new):
        path.touch()
    os.utime(old, (time.time() - 10_000,) * 2)
    (folder / f"{GROUPS[0]}.safetensors").unlink()
    begin(lacking(tmp_path, GROUPS[:1]), products).result(timeout=60)
    assert there(tmp_path) == sorted([new.name, *(f"{group}.safetensors" for group in GROUPS)])


def test_a_full_disk_ends_it_silently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(quantised_files, "write_summed", full)
    begin(lacking(tmp_path), {group: Product() for group in GROUPS}).result(timeout=60)
    assert there(tmp_path) == []


def test_weights_that_are_refused_are_not_written(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "model", "Llama")

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.mlp.down_proj.weight"][0, 0] = math.nan

    edit_tensors(folder, spoil)
    with pytest.raises(InputError, match=r"down_proj\.weight: found NaN"):
        load_decoder(folder, weight_format="fp8", cache_directory=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_streamed_layers_are_written_within_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_checkpoint(tmp_path / "model", "Llama", num_hidden_layers=4)
    monkeypatch.setattr("cohort.models.weights.write_behind", lambda *_, **__: pytest.fail("behind"))
    streaming = host_streaming(range(4), CPU)
    load_decoder(folder, weight_format="fp8", cache_directory=tmp_path / "cache", streaming=streaming)
    assert len(there(tmp_path / "cache")) == 16


_PROGRAM = """
import sys, time
from pathlib import Path
from tests.models.checkpoint import groups_behind as own
from cohort.kernels.device_blocks import OfThread

blocks = OfThread.blocks
def slow(self, tensor):
    for block in blocks(self, tensor):
        print("block", flush=True)
        time.sleep(float(sys.argv[2]))
        yield block
OfThread.blocks = slow
products = {group: own.Product() for group in own.GROUPS}
own.begin(own.lacking(Path(sys.argv[1])), products)
"""


def run(folder: Path, seconds: float, *, then: Callable[[subprocess.Popen[str]], None] | None = None) -> float:
    """Run a program that ends as it has begun to write blocks of ``seconds``; return the seconds it then takes."""
    command = [sys.executable, "-c", _PROGRAM, str(folder), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "block\n"
        began = time.monotonic()
        if then is not None:
            then(process)
        process.communicate(timeout=60)
        assert process.returncode == (0 if then is None else -signal.SIGKILL)
    return time.monotonic() - began


@pytest.mark.parametrize(("seconds", "num_files"), [(0.01, 2), (3.0, 0)])
def test_the_end_of_a_process_waits_briefly_and_leaves_no_half_file(
    tmp_path: Path, seconds: float, num_files: int
) -> None:
    assert run(tmp_path, seconds) < 8
    assert there(tmp_path) == sorted(f"{group}.safetensors" for group in GROUPS[:num_files])


def test_half_a_file_of_a_killed_process_counts_for_nothing(tmp_path: Path) -> None:
    run(tmp_path, 30.0, then=lambda process: process.kill())
    assert all(name.endswith(".partial") for name in there(tmp_path))
    lacking(tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_a_decoder_is_freed_once_its_weights_are_written(tmp_path: Path, name: str) -> None:
    folder = save_checkpoint(tmp_path / "model", "Llama")
    decoder = load_decoder(folder, weight_format=name, cache_directory=tmp_path / "cache")
    for thread in threading.enumerate():
        if thread.name == "cohort-quantised":
            thread.join()
    assert len(there(tmp_path / "cache")) == 8
    freed = weakref.ref(decoder)
    del decoder
    gc.collect()
    assert freed() is None
