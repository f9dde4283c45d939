"""Passes on a GPU that is not here: shapes, addresses and launches are those of the GPU, and nothing else is left."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.kernels.backend import Backend, describe_backend
from cohort.machine.compile_ahead.absent_gpu import AbsentTensor, absent_gpu
from cohort.machine.gpu_kinds import GPU_KINDS, find_gpu_kind
from tests.training.small_models import save_llama

pytest.importorskip("triton")
H200 = find_gpu_kind("NVIDIA H200", where="--gpu")


def test_tensors_have_shapes_and_addresses_and_no_numbers() -> None:
    with absent_gpu(H200):
        assert torch.cuda.get_device_name() == "NVIDIA H200"
        x = torch.empty(6, 8, device="cuda", dtype=torch.bfloat16)
        assert isinstance(x, AbsentTensor)
        assert (x.device, x.is_cuda) == (torch.device("cuda", 0), True)
        # of an address kernels ask what it is divisible by
        assert [x[row].data_ptr() % 16 for row in range(2)] == [0, 0]
        assert x[0, 1:].data_ptr() % 16 == 2
        assert x.t().stride() == (1, 8)
        y = torch.ones(8, 3, dtype=torch.bfloat16).to("cuda")
        assert (x @ y).shape == (6, 3)
        assert y.mul_(2) is y
        assert y.cpu().tolist() == [[0.0] * 3] * 8
        assert y.sum().item() == 0
        host = torch.ones(8, 3)
        assert host.copy_(y) is host
        # what is on the host is computed there
        assert (host + 1).sum().item() == 48
        weight = torch.ones(3, device="cuda", requires_grad=True)
        (weight * 2).sum().backward()
        assert weight.grad is not None
        assert weight.grad.is_cuda


def test_this_machine_is_as_before_afterwards() -> None:
    before = (dict(vars(torch.cuda)), dict(os.environ))
    with absent_gpu(H200):
        assert describe_backend("cuda").backend is Backend.TRITON
    with pytest.raises(ZeroDivisionError), absent_gpu(H200):
        raise ZeroDivisionError
    assert (dict(vars(torch.cuda)), dict(os.environ)) == before
    assert not isinstance(torch.empty(2), AbsentTensor)
    assert importlib.import_module("triton.runtime.driver").driver._active is None or torch.cuda.is_available()


def _in_a_process(tmp_path: Path, *arguments: str) -> dict[str, int]:
    """Return how often each kernel was collected by a process that does not interpret kernels, as these tests do."""
    save_llama(tmp_path / "model")
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "triton"), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "tests.machine.compile_ahead.absent_launches", str(tmp_path / "model"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_all_kinds_of_kernels_are_collected_and_one_is_compiled(tmp_path: Path) -> None:
    counts = _in_a_process(tmp_path, "NVIDIA H200", "_slot_norms_kernel")
    assert {"shrink_kernel", "expand_kernel", "input_side_kernel", "_rope_kernel", "_update_kernel"} <= set(counts)
    # forward, backward, evaluation and the optimizer of a pass
    assert sum(counts.values()) > 20
    (cubin,) = (tmp_path / "triton").glob("*/_slot_norms_kernel.cubin")
    assert cubin.read_bytes()[:4] == b"\x7fELF"
    # a launch reads all that is kept next to it
    assert {path.suffix for path in cubin.parent.iterdir()} <= {".cubin", ".json", ".source"}


@pytest.mark.gpu
def test_the_launches_of_a_gpu_that_is_here_are_those_of_its_kind(tmp_path: Path) -> None:
    properties: Any = torch.cuda.get_device_properties(0)
    counts = _in_a_process(tmp_path, "here")
    assert counts["only here"] == counts["only by its kind"] == 0
    assert counts["both"] > 20
    # the sizes in our list, where it has this kind
    if properties.name in {kind.name for kind in GPU_KINDS}:
        listed = find_gpu_kind(properties.name, where="--gpu")
        assert listed.capability == (properties.major, properties.minor)
        assert listed.num_multiprocessors == properties.multi_processor_count
        assert listed.shared_bytes == properties.shared_memory_per_block_optin
