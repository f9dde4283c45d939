"""The hardware that costs are kept under."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cohort.machine.devices import hardware_of
from cohort.machine.machine import Machine


def machine(device: str, *, name: str = "a CPU", threads: int = 1) -> Machine:
    return Machine(
        device=torch.device(device), device_name=name, dtype="float32", threads=threads, memory_bytes=8 << 30
    )


def test_threads_are_part_of_a_cpus_name_and_speed() -> None:
    one, four = hardware_of(machine("cpu")), hardware_of(machine("cpu", threads=4))
    assert (one.name, four.name) == ("a CPU, 1 thread", "a CPU, 4 threads")
    assert four.flops_per_second == 4 * one.flops_per_second
    assert four.bytes_per_second == one.bytes_per_second
    assert not four.is_gpu


@pytest.mark.parametrize(("name", "is_known"), [("NVIDIA H200", True), ("a GPU that is not described", False)])
def test_a_gpu_has_the_memory_that_is_here(monkeypatch: pytest.MonkeyPatch, name: str, is_known: bool) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=5 << 30))
    found = hardware_of(machine("cuda", name=name))
    assert found.is_gpu
    assert found.memory_bytes == 5 << 30
    assert (found.flops_per_second == 1e14) is not is_known
