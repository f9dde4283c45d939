"""What of a GPU's memory a task may take, also after another one in the same process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.memory.plan import CONTEXT_BYTES, _available
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


def test_a_limit_ends_with_its_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_inputs(tmp_path / "inputs")
    fractions: list[float] = []
    decoder: Any = SimpleNamespace(device=torch.device("cuda"), num_bytes=100, ring=None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 << 30, 4 << 30))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=4 << 30))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: fractions.append(share))
    limited = tiny_task(folder, memory={"limit": "1 GiB"})
    assert _available(limited, decoder) == (1 << 30) - (1 << 20)
    assert _available(tiny_task(folder), decoder) == 3 << 30
    assert fractions == [0.25, 1.0]


def test_the_fullest_of_several_gpus_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_inputs(tmp_path / "inputs")
    decoder: Any = SimpleNamespace(device=torch.device("cuda"), num_bytes=100, ring=None)
    # the second holds another program; neither holds this base model yet but the first
    free = {None: 60 << 30, 1: 50 << 30}
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[device.index], 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 16 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 << 30))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: None)
    assert _available(tiny_task(folder), decoder) == 60 << 30
    assert _available(tiny_task(folder), decoder, num_gpus=2) == (50 << 30) - (16 << 30) - CONTEXT_BYTES
