"""Kinds of GPUs that kernels can be compiled for on a machine that has none of them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from cohort.core.errors import InputError, Problem

__all__ = ["GPU_KINDS", "GpuKind", "find_gpu_kind", "require_known_gpu"]

_GIB = 1 << 30
# what a program may take of a multiprocessor's shared memory, by compute capability (CUDA C++ Programming Guide,
# "Technical Specifications per Compute Capability")
_SHARED_BYTES = {(8, 0): 163 << 10, (8, 6): 99 << 10, (8, 9): 99 << 10, (9, 0): 227 << 10, (10, 0): 227 << 10}


@dataclass(frozen=True, kw_only=True)
class GpuKind:
    """What kernels and their tile sizes depend on.

    Attributes:
        name: As torch names it; tables of tiles and caches are looked up by it.
        capability: Compute capability.
        num_multiprocessors: Of the whole GPU.
        memory_bytes: Of the device, rounded down to whole GiB.
    """

    name: str
    capability: tuple[int, int]
    num_multiprocessors: int
    memory_bytes: int

    @property
    def shared_bytes(self) -> int:
        """Most shared memory of one program."""
        return _SHARED_BYTES[self.capability]


def _kind(name: str, capability: tuple[int, int], num_multiprocessors: int, gib: int) -> GpuKind:
    return GpuKind(name=name, capability=capability, num_multiprocessors=num_multiprocessors, memory_bytes=gib * _GIB)


# multiprocessors and memory by NVIDIA's data sheets; the H200 and the H100 80GB HBM3 as their drivers say
GPU_KINDS = (
    _kind("NVIDIA H200", (9, 0), 132, 139),
    _kind("NVIDIA H100 80GB HBM3", (9, 0), 132, 79),
    _kind("NVIDIA H100 NVL", (9, 0), 132, 93),
    _kind("NVIDIA H100 PCIe", (9, 0), 114, 79),
    _kind("NVIDIA GH200 480GB", (9, 0), 132, 95),
    _kind("NVIDIA B200", (10, 0), 148, 178),
    _kind("NVIDIA A100-SXM4-80GB", (8, 0), 108, 79),
    _kind("NVIDIA A100-SXM4-40GB", (8, 0), 108, 39),
    _kind("NVIDIA A100 80GB PCIe", (8, 0), 108, 79),
    _kind("NVIDIA A100-PCIE-40GB", (8, 0), 108, 39),
    _kind("NVIDIA A10G", (8, 6), 80, 22),
    _kind("NVIDIA A10", (8, 6), 72, 22),
    _kind("NVIDIA L40S", (8, 9), 142, 44),
    _kind("NVIDIA L4", (8, 9), 58, 22),
    _kind("NVIDIA GeForce RTX 4090", (8, 9), 128, 23),
    _kind("NVIDIA GeForce RTX 3090", (8, 6), 82, 23),
)


def find_gpu_kind(name: str, *, where: str) -> GpuKind:
    """Return the kind that torch calls ``name``.

    Args:
        where: How messages name the option.

    Raises:
        InputError: its sizes are not known.
    """
    kinds = {kind.name: kind for kind in GPU_KINDS}
    hint = "Kernels for other GPUs are compiled there: leave --gpu out."
    require_known_gpu(name, where=where, names=list(kinds), found="whose sizes are not known", hint=hint)
    return kinds[name]


def require_known_gpu(name: str, *, where: str, names: Sequence[str], found: str, hint: str) -> None:
    """Refuse a GPU's name that is none of ``names``, with the nearest of them.

    Args:
        where: How messages name the option.
        found: What is not known of other GPUs.
        hint: What to do about those.

    Raises:
        InputError: the name is none of them.
    """
    if name in names:
        return
    short = {known.removeprefix("NVIDIA ").casefold(): known for known in names}
    wanted = name.casefold().removeprefix("nvidia ")
    near = [known for text, known in short.items() if wanted and wanted in text]
    near = near or [short[text] for text in difflib.get_close_matches(wanted, short, n=1)]
    nearest = f"Did you mean {near[0]!r}? " if near else ""
    raise InputError(
        Problem(
            where=where,
            found=f"{name!r}, {found}",
            allowed=" | ".join(names),
            hint=f"{nearest}The name is torch's, as in `cohort doctor` on a machine that has one. {hint}",
        )
    )
