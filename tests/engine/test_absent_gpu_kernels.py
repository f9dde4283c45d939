"""Kernels of a task for a GPU that is not here: what a run there would look for is what is compiled, or the reason."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.core.errors import InputError
from cohort.engine.warm_caches import compile_for_absent_gpu
from cohort.machine.compile_ahead import task_kernels as kernels
from cohort.machine.compile_ahead.workers import Compiled
from cohort.machine.gpu_kinds import find_gpu_kind
from cohort.tasks.loading import TaskFile
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

pytest.importorskip("triton")
H200 = find_gpu_kind("NVIDIA H200", where="--gpu")


def task_of(folder: Path, **changes: Any) -> TaskFile:
    """Return a tiny task for a GPU."""
    return tiny_task(write_inputs(folder / "in"), **{"num_gpus": "auto", **changes})


class Workers:
    """Stand for processes that compile, and note what they are given."""

    def wait(self) -> Compiled:
        return Compiled(num_kernels=3, num_failed=0)

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what launches are collected of; nothing is compiled."""
    found: list[Any] = []
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kernels, "KernelCompiler", Workers)
    monkeypatch.setattr(
        kernels,
        "collect_launches",
        lambda decoder, *, adapters, numerics, **_: found.append(
            (decoder.device, decoder.dtype, [spec.r for spec in adapters], torch.cuda.get_device_name(), numerics.value)
        ),
    )
    return found


def test_the_kernels_of_a_task_are_compiled_once_for_each_kind(tmp_path: Path, collected: list[Any]) -> None:
    task, said = task_of(tmp_path), list[str]()
    assert compile_for_absent_gpu(task, H200, say=said.append) == Compiled(num_kernels=3, num_failed=0)
    # with the task's dropout, and without it, as the passes are that measure memory
    assert collected == [(torch.device("cuda", 0), torch.bfloat16, [2, 2], "NVIDIA H200", "fast")]
    assert said == [
        "reading and tokenising the data",
        "compiling kernels, once for this model, these ranks and this GPU",
    ]
    (marker,) = (tmp_path / "triton").glob("*.compiled")
    # the cache holds them now, and not those of another kind
    assert compile_for_absent_gpu(task, H200, say=said.append).num_kernels == 0
    assert len(collected) == 1
    other = find_gpu_kind("NVIDIA A100-SXM4-80GB", where="--gpu")
    assert compile_for_absent_gpu(task, other, say=said.append).num_kernels == 3
    assert [entry[3] for entry in collected] == ["NVIDIA H200", "NVIDIA A100-SXM4-80GB"]
    assert {marker} < set((tmp_path / "triton").glob("*.compiled"))
    # a rank that holds half of each layer launches others
    halves = task_of(tmp_path, num_gpus=2, strategy="tensor")
    assert compile_for_absent_gpu(halves, H200, say=said.append).num_kernels == 3
    # this machine computes as before
    assert torch.ones(2).sum().item() == 2


def test_what_follows_from_more_than_shapes_is_refused(
    tmp_path: Path, collected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for changes, words in (
        ({"num_gpus": 0}, "num_gpus: found 0, the CPU, for which nothing is compiled"),
        ({"quantization": "nf4"}, "quantization: found nf4; allowed: none"),
        ({"lora": {"target_modules": ["no_such_proj"]}}, "no_such_proj"),
    ):
        with pytest.raises(InputError, match=words):
            compile_for_absent_gpu(task_of(tmp_path, **changes), H200, say=lambda _: None)
    assert collected == []

    def needs_numbers(*_: object, **__: object) -> None:
        raise NotImplementedError("aten::nonzero on the meta device")

    monkeypatch.setattr(kernels, "collect_launches", needs_numbers)
    with pytest.raises(InputError, match=r"need the GPU itself: NotImplementedError: aten::nonzero"):
        compile_for_absent_gpu(task_of(tmp_path), H200, say=lambda _: None)
    assert not list((tmp_path / "triton").glob("*.compiled"))
    task = task_of(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pip install '.\[gpu\]'"):
        compile_for_absent_gpu(task, H200, say=lambda _: None)
