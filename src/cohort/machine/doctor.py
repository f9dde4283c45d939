"""Examines this machine: its hardware and packages, what a run would use of them, and what is probably wrong."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from cohort.core.cache_directory import default_cache_directory
from cohort.core.memory_records import MARGIN_SHARE
from cohort.core.process.cores import num_cores
from cohort.core.units import format_bytes
from cohort.kernels.backend import describe_backend
from cohort.machine.kernel_choices import describe_kernels
from cohort.machine.machine import Machine, choose_machine, cpu_name, host_memory_bytes, package_versions
from cohort.models.weight_formats import all_formats
from cohort.models.weight_formats.weight_format import WeightFormat

__all__ = ["DiskSpace", "Gpu", "MachineReport", "examine_machine"]

OPTIONAL_PACKAGES = ("triton", "peft", "datasets", "pyarrow", "tensorboard", "wandb", "mlflow", "trackio")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One CUDA device; sizes in bytes."""

    index: int
    name: str
    capability: str
    total_bytes: int
    free_bytes: int
    backend: str


@dataclass(frozen=True, kw_only=True)
class DiskSpace:
    """Free bytes where something is written."""

    purpose: str
    path: str
    free_bytes: int


@dataclass(frozen=True, kw_only=True)
class MachineReport:
    """A machine in words and numbers.

    Attributes:
        used_device: The device of `num_gpus: auto`.
        used_dtype: Precision of the frozen model there.
        formats: For each format of frozen weights, whether it can be used there.
        used_memory: How much of its memory, and how that is found.
        used_kernels: The kernels that run there and why, by what they do.
        warnings: Probable mistakes of the setup.
    """

    system: str
    python: str
    cpu: str
    num_cpus: int
    torch_threads: int
    memory_total_bytes: int
    memory_free_bytes: int
    cuda_build: str
    gpus: tuple[Gpu, ...]
    used_device: str
    used_dtype: str
    formats: dict[str, str]
    used_memory: str
    used_kernels: dict[str, str]
    versions: dict[str, str]
    missing_packages: tuple[str, ...]
    disks: tuple[DiskSpace, ...]
    warnings: tuple[str, ...]


def _gpus() -> tuple[Gpu, ...]:
    if not torch.cuda.is_available():
        return ()
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        major, minor = torch.cuda.get_device_capability(index)
        found.append(
            Gpu(
                index=index,
                name=torch.cuda.get_device_name(index),
                capability=f"{major}.{minor}",
                total_bytes=total,
                free_bytes=free,
                backend=str(describe_backend(torch.device("cuda", index))),
            )
        )
    return tuple(found)


def _nearest_existing(path: Path) -> Path:
    # free space is asked before the directory exists
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _disks() -> tuple[DiskSpace, ...]:
    places = (("runs", Path.cwd()), ("tokenised rows", default_cache_directory()), ("hub models", _hub_cache()))
    return tuple(
        DiskSpace(purpose=purpose, path=str(path), free_bytes=shutil.disk_usage(_nearest_existing(path)).free)
        for purpose, path in places
    )


def _hub_cache() -> Path:
    # the same order as huggingface_hub, which is not imported only to ask it
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"])
    return Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser() / "hub"


def _warnings(gpus: tuple[Gpu, ...], disks: tuple[DiskSpace, ...]) -> tuple[str, ...]:
    # each would otherwise show only as a run that is slow, or fails late
    found = []
    if not gpus and torch.version.cuda is not None:
        found.append(f"torch is built for CUDA {torch.version.cuda} but sees no GPU; check the driver with nvidia-smi")
    if not gpus and torch.version.cuda is None and Path("/dev/nvidiactl").exists():
        found.append("there is an NVIDIA GPU but torch is a CPU build; install torch's CUDA build")
    if gpus and importlib.util.find_spec("triton") is None:
        found.append("Triton is missing, so the GPU runs plain torch; pip install triton")
    for disk in disks:
        if disk.free_bytes < 1 << 30:
            found.append(f"less than 1 GiB is free for {disk.purpose} in {disk.path}")
    return tuple(found)


def _format_text(kept: WeightFormat, device: torch.device) -> str:
    if problem := kept.device_problem(device):
        return f"not on {problem}; runs on {kept.runs_on}"
    return kept.summary if device.type != "cpu" else f"{kept.summary}; runs on {kept.runs_on}"


def _used_memory(machine: Machine) -> str:
    streamed = "a base model that does not fit is streamed from host memory (memory.host_streamed_layers)"
    recomputed = "a row that does not fit with all activations kept is recomputed (memory.gradient_checkpointing)"
    if machine.device.type == "cpu":
        return f"as much as the trials need; memory.limit bounds base model, adapters and passes; {recomputed}"
    # by the default margin: the doctor sees no task file
    fits = format_bytes(machine.memory_bytes * (1 - MARGIN_SHARE))
    measured = "what passes take is measured before training (memory.limit, memory.margin, memory.profile)"
    return f"up to {fits}; {measured}; {recomputed}; {streamed}"


def examine_machine() -> MachineReport:
    """Examine this machine; no memory of a GPU is taken but what asking it costs."""
    gpus, disks = _gpus(), _disks()
    machine = choose_machine("auto", where="num_gpus")
    total, free = host_memory_bytes()
    return MachineReport(
        system=platform.platform(),
        python=sys.version.split()[0],
        cpu=cpu_name(),
        num_cpus=num_cores(),
        torch_threads=torch.get_num_threads(),
        memory_total_bytes=total,
        memory_free_bytes=free,
        cuda_build=torch.version.cuda or "none",
        gpus=gpus,
        used_device=f"{machine.device} ({machine.device_name})",
        used_dtype=machine.dtype,
        formats={kept.name: _format_text(kept, machine.device) for kept in all_formats()},
        used_memory=_used_memory(machine),
        used_kernels=describe_kernels(machine.device),
        versions=package_versions(),
        missing_packages=tuple(name for name in OPTIONAL_PACKAGES if importlib.util.find_spec(name) is None),
        disks=disks,
        warnings=_warnings(gpus, disks),
    )
