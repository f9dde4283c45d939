"""Which implementation of a kernel runs: decided by one rule, printable, never silently exchanged.

Every op comes as ``reference`` (plain torch, any device and dtype) and most also as ``triton``. The rule: an explicit
argument, else :func:`use_backend` around the call, else Triton where the tensor is on a GPU that Triton can compile for
and its dtype is one the kernels keep exact (they compute in float32, so float64 tensors take the reference).
"""

from __future__ import annotations

import enum
import functools
import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cohort.core.errors import CohortError

__all__ = [
    "Backend",
    "BackendChoice",
    "BackendError",
    "choose_backend",
    "describe_backend",
    "implementation",
    "on_device_of",
    "triton_interprets",
    "use_backend",
]

# Triton's own requirement for NVIDIA GPUs (Volta is deprecated upstream but still compiles elementwise code).
LEAST_CAPABILITY = (7, 0)
TRITON_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Backend(enum.Enum):
    """An implementation of the kernels. The value is the name of the file in each kernel's folder."""

    REFERENCE = "reference"
    TRITON = "triton"


class BackendError(CohortError):
    """A backend was asked for by name and cannot run here."""


@dataclass(frozen=True, kw_only=True)
class BackendChoice:
    """What runs on a device and why, for ``cohort doctor`` and the run record."""

    backend: Backend
    reason: str

    def __str__(self) -> str:
        return f"{self.backend.value} ({self.reason})"


_forced_backend: ContextVar[Backend | None] = ContextVar("forced_backend", default=None)


@contextmanager
def use_backend(backend: Backend) -> Iterator[None]:
    """Force ``backend`` for every op called in this context (its backward included); explicit arguments still win."""
    token = _forced_backend.set(backend)
    try:
        yield
    finally:
        _forced_backend.reset(token)


@functools.cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def triton_interprets() -> bool:
    """Return whether Triton runs kernels as Python on the CPU: ``TRITON_INTERPRET=1``, set before Triton is loaded."""
    return _triton_is_installed() and os.environ.get("TRITON_INTERPRET", "0") == "1"


@functools.cache
def _describe_cuda(index: int) -> BackendChoice:
    if not _triton_is_installed():
        return BackendChoice(
            backend=Backend.REFERENCE, reason="Triton is not installed; `pip install triton` for the fast kernels"
        )
    name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
    if torch.version.hip is None and capability < LEAST_CAPABILITY:
        return BackendChoice(
            backend=Backend.REFERENCE, reason=f"Triton does not compile for {name} (compute capability {capability})"
        )
    return BackendChoice(backend=Backend.TRITON, reason=f"{name}, float32 arithmetic inside")


def describe_backend(device: torch.device | str) -> BackendChoice:
    """Return which backend is used on ``device`` by default, with the reason."""
    device = torch.device(device)
    forced = _forced_backend.get()
    if forced is not None:
        return BackendChoice(backend=forced, reason="forced by use_backend")
    if device.type != "cuda":
        return BackendChoice(backend=Backend.REFERENCE, reason=f"the Triton kernels need a GPU, this is {device.type}")
    return _describe_cuda(torch.cuda.current_device() if device.index is None else device.index)


def choose_backend(tensor: Tensor, *, backend: Backend | None = None) -> Backend:
    """Return the backend for an op whose main operand is ``tensor``.

    Raises:
        BackendError: Triton was asked for (by argument or :func:`use_backend`) where it cannot run.
    """
    asked = backend if backend is not None else _forced_backend.get()
    if asked is None:
        # on the hot path: describe_backend also builds a reason, which only people read
        if tensor.device.type != "cuda" or tensor.dtype not in TRITON_DTYPES:
            return Backend.REFERENCE
        return describe_backend(tensor.device).backend
    if not isinstance(asked, Backend):
        raise BackendError(
            f"found backend {asked!r}; allowed: Backend.REFERENCE, Backend.TRITON, or None for the default"
        )
    if asked is Backend.TRITON:
        if not _triton_is_installed():
            raise BackendError("the Triton kernels were asked for but Triton is not installed: `pip install triton`")
        if tensor.device.type == "cpu" and not triton_interprets():
            raise BackendError(
                "the Triton kernels were asked for on a CPU tensor: set TRITON_INTERPRET=1 before the start"
            )
        if tensor.device.type == "cpu" and tensor.dtype is torch.bfloat16:
            raise BackendError(
                "Triton's interpreter multiplies bfloat16 as if it were integers: use float16 or float32 on the CPU"
            )
        if tensor.dtype not in TRITON_DTYPES:
            raise BackendError(f"the Triton kernels compute in float32 and would lose digits of {tensor.dtype}")
    return asked


@functools.cache
def implementation(op: str, backend: Backend) -> Any:
    """Return the module ``cohort.kernels.<op>.<backend>``, imported on first use: Triton is an optional package."""
    return importlib.import_module(f"cohort.kernels.{op}.{backend.value}")


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context in which launches go to ``tensor``'s GPU: Triton launches on the current one."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
