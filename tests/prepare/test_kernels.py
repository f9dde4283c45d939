"""Kernels are compiled ahead on a GPU alone, once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.numerics import Numerics
from cohort.prepare import kernels
from cohort.prepare.kernels import KernelWarmUp


def warm_up(device: str) -> KernelWarmUp:
    machine: Any = SimpleNamespace(
        device=torch.device(device), dtype="bfloat16", precision="bfloat16", numerics=Numerics.FAST
    )
    spec: Any = SimpleNamespace(adapter=AdapterSpec(r=8, lora_alpha=8.0))
    rows: Any = SimpleNamespace(lengths=np.array([3, 5]))
    config: Any = "sizes of a model"
    return KernelWarmUp(machine, config=config, layout=AdapterLayout({"q": (8, 8)}), specs=[spec], rows=rows)


def test_nothing_happens_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise AssertionError("no worker is needed")

    monkeypatch.setattr(kernels, "KernelCompiler", fails)
    decoder: Any = None
    warm_up("cpu").run(decoder, say=fails)


def test_a_cache_that_lost_kernels_is_filled_again(tmp_path: Path) -> None:
    marker = tmp_path / "cohort-0.compiled"
    assert not kernels._is_whole(marker)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    kernels._mark(marker)
    assert kernels._is_whole(marker)
    # kernels of another model only add to it
    (tmp_path / "three").mkdir()
    assert kernels._is_whole(marker)
    for name in ("one", "two"):
        (tmp_path / name).rmdir()
    assert not kernels._is_whole(marker)
    for damaged in ("not a number", ""):
        marker.write_text(damaged)
        assert not kernels._is_whole(marker)
