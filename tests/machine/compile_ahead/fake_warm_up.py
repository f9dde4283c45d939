"""Kernels of a task on a GPU that is not there, with workers that compile nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.numerics import Numerics
from cohort.machine.compile_ahead.launched_model import LaunchedModel
from cohort.machine.compile_ahead.task_kernels import KernelWarmUp
from cohort.machine.compile_ahead.workers import Compiled

__all__ = ["Workers", "warm_up"]


def warm_up(
    device: str,
    *,
    say: Any,
    workers: Any = None,
    quantization: str = "none",
    region: Any = None,
    r: int = 8,
    numerics: Numerics = Numerics.FAST,
    early: KernelWarmUp | None = None,
    mean_length: float = 200.0,
    mixture: object = None,
) -> KernelWarmUp:
    machine: Any = SimpleNamespace(
        device=torch.device(device),
        device_name="a GPU",
        dtype="bfloat16",
        precision="bfloat16",
        numerics=numerics,
        quantization=quantization,
    )
    config: Any = SimpleNamespace(bridged=None, mixture=mixture)
    return KernelWarmUp(
        machine,
        adapters=[AdapterSpec(r=r, lora_alpha=8.0)],
        mean_length=mean_length,
        model=LaunchedModel(config=config, layout=AdapterLayout({"q": (8, 8)}), region=region),
        say=say,
        workers=workers,
        early=early,
    )


class Workers:
    """Stand for processes that compile."""

    def __init__(self, num_failed: int = 0) -> None:
        self.num_failed = num_failed
        self.calls: list[str] = []

    def go_on(self, ended: Callable[[Compiled], None]) -> None:
        self.calls.append("go on")
        self.ended = ended

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        self.calls.append("collecting")
        yield
        self.calls.append("collected")

    def wait(self) -> Compiled:
        self.calls.append("wait")
        return Compiled(num_kernels=3, num_failed=self.num_failed, first_error="no room" if self.num_failed else "")

    def __exit__(self, *_: object) -> None:
        self.calls.append("end")
