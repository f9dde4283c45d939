"""What a run computes on: the memory it counts with is what can be had, not what happens to lie idle."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.core.errors import InputError
from cohort.machine.machine import choose_machine, cpu_name, free_memory_bytes, host_memory_bytes

MEMINFO = "MemTotal:  16000 kB\nMemFree:  200 kB\nMemAvailable:  9000 kB\nHugePages_Total:  0\n"


def test_memory_in_the_page_cache_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self, *_, **__: MEMINFO)
    assert host_memory_bytes() == (16000 * 1024, 9000 * 1024)
    assert free_memory_bytes(torch.device("cpu")) == 9000 * 1024


def test_a_system_that_tells_nothing_is_a_small_laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self, *_, **__: "")
    assert free_memory_bytes(torch.device("cpu")) == 4 << 30


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(InputError, match=r"1 GPU asked for.*install a torch build"):
        choose_machine(1, where="num_gpus")


def test_a_gpu_that_a_variable_hides_is_no_fault_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES is '': name a GPU"):
        choose_machine(1, where="num_gpus")
    # a torch for CPUs uses none, whatever is visible
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(InputError, match="install a torch build"):
        choose_machine(1, where="num_gpus")
    assert choose_machine("auto", where="num_gpus").device.type == "cpu"


def test_more_gpus_than_there_are_and_gpus_of_two_kinds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["NVIDIA H100", "NVIDIA H100", "NVIDIA L4"]
    free = [80 << 30, 60 << 30, 20 << 30]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu=0: names[gpu])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[device.index or 0], 0))
    with pytest.raises(
        InputError, match=r"4 GPUs asked for, 3 that torch can use; allowed: .* 1 to 3\. Write num_gpus: 3"
    ):
        choose_machine(4, where="num_gpus")
    with pytest.raises(InputError, match="of different kinds: NVIDIA H100, NVIDIA H100, NVIDIA L4"):
        choose_machine(3, where="num_gpus")
    two = choose_machine(2, where="num_gpus")
    # the same sizes hold on all: those of the fullest
    assert (two.num_gpus, two.memory_bytes) == (2, 60 << 30)
    assert choose_machine("auto", where="num_gpus").num_gpus == 1


def test_a_cpu_is_named_with_the_instructions_that_order_its_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {}
    for capability in ("AVX512", "AVX2", "DEFAULT"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda found=capability: found)
        names[capability] = cpu_name()
    assert names["DEFAULT"]
    assert names["AVX512"] == f"{names['DEFAULT']}, AVX-512"
    assert names["AVX2"] == f"{names['DEFAULT']}, AVX2"
