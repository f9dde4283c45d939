"""What a run computes on: the memory it counts with is what can be had, not what happens to lie idle."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.core.errors import InputError
from cohort.machine.machine import choose_machine, free_memory_bytes, host_memory_bytes

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
    with pytest.raises(InputError, match="1 GPUs asked for"):
        choose_machine(1, where="num_gpus")
    assert choose_machine("auto", where="num_gpus").device.type == "cpu"
