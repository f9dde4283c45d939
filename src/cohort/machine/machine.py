"""The device and precision of a run: chosen once, printed and recorded, with no silent fallback."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from cohort.core.errors import InputError, Problem
from cohort.core.numerics import Numerics
from cohort.core.source_location import Place
from cohort.core.units import counted
from cohort.models.weight_formats import PLAIN

__all__ = ["Machine", "choose_machine", "cpu_name", "free_memory_bytes", "host_memory_bytes", "package_versions"]

# another version of one of these may change the last bits of a result
_PACKAGES = ("cohort-lora", "torch", "transformers", "tokenizers", "safetensors", "numpy", "triton")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Device and precision of a run.

    Attributes:
        device: torch device.
        device_name: What the device calls itself.
        dtype: The frozen model's and the stream's, by torch's name; adapters are always float32 masters.
        threads: CPU threads of torch; part of a run's identity.
        memory_bytes: Free memory of the device now; of several GPUs, of the one with the least.
        num_gpus: GPUs to train on, the first ones that torch sees; 0 on a CPU.
        quantization: Format of the frozen linears' weights; none: in ``dtype``.
        numerics: Whether a trial's bits may follow from its pack; of a CPU they never do.
        numerics_reason: Why, where it was not the task file that named them.
    """

    device: torch.device
    device_name: str
    dtype: str
    threads: int
    memory_bytes: int
    num_gpus: int = 0
    quantization: str = PLAIN.name
    numerics: Numerics = Numerics.FAST
    numerics_reason: str = ""

    @property
    def precision(self) -> str:
        """What the base model computes in and is kept in, in words; costs are measured for each."""
        weights = "" if self.quantization == PLAIN.name else f", {self.quantization} weights"
        # a CPU has one way to compute, so what was measured there holds for both
        is_exact = self.numerics is Numerics.EXACT and self.device.type != "cpu"
        return f"{self.dtype}{weights}{', exact numerics' if is_exact else ''}"


def choose_machine(num_gpus: int | str, *, where: Place | str) -> Machine:
    """Return the GPU if there is one and the task does not forbid it, else the CPU; ``auto`` is one GPU.

    Args:
        where: How messages name that key.

    Raises:
        InputError: more GPUs are asked for than there are, or they are not alike.
    """
    threads = torch.get_num_threads()
    if num_gpus != 0 and torch.cuda.is_available():
        device = torch.device("cuda")
        wanted = 1 if isinstance(num_gpus, str) else num_gpus
        _require_alike(wanted, where=where)
        return Machine(
            device=device,
            device_name=torch.cuda.get_device_name(),
            # GPUs before Ampere have no bfloat16 products
            dtype="bfloat16" if torch.cuda.is_bf16_supported() else "float32",
            threads=threads,
            memory_bytes=min(free_memory_bytes(torch.device("cuda", gpu)) for gpu in range(wanted)),
            num_gpus=wanted,
        )
    if isinstance(num_gpus, int) and num_gpus > 0:
        raise InputError(
            Problem(
                where=where,
                found=f"{counted(num_gpus, 'GPU')} asked for, none that torch can use",
                allowed="auto | 0 (CPU)",
                hint=_hint_without_gpus(os.environ.get("CUDA_VISIBLE_DEVICES")),
            )
        )
    return Machine(
        device=torch.device("cpu"),
        device_name=cpu_name(),
        dtype="float32",
        threads=threads,
        memory_bytes=free_memory_bytes(torch.device("cpu")),
    )


def _hint_without_gpus(visible: str | None) -> str:
    """Return what makes a GPU usable: a torch that was built for one does not see those that a variable hides."""
    if visible is not None and (torch.version.cuda or torch.version.hip):
        return f"CUDA_VISIBLE_DEVICES is {visible!r}: name a GPU of this machine there, or write num_gpus: auto."
    return "Write num_gpus: auto, or install a torch build for your GPU."


def _require_alike(wanted: int, *, where: Place | str) -> None:
    """Refuse more GPUs than there are, and GPUs of different kinds: all of them hold the same and step together."""
    there = torch.cuda.device_count()
    if wanted > there:
        raise InputError(
            Problem(
                where=where,
                found=f"{wanted} GPUs asked for, {there} that torch can use",
                allowed=f"auto | 0 (CPU) | 1 to {there}",
                hint=f"Write num_gpus: {there}, or make more of them visible (CUDA_VISIBLE_DEVICES).",
            )
        )
    names = [torch.cuda.get_device_name(gpu) for gpu in range(wanted)]
    if len(set(names)) > 1:
        raise InputError(
            Problem(
                where=where,
                found=f"{wanted} GPUs of different kinds: {', '.join(names)}",
                allowed="GPUs of one kind",
                hint="Choose those of one kind with CUDA_VISIBLE_DEVICES, or write num_gpus: 1.",
            )
        )


def cpu_name() -> str:
    """Return the name of the processor and the widest vector instructions that torch uses on it.

    The order of a sum, and so its last bits, follows from them; many virtual machines give all processors one name.
    """
    instructions = torch.backends.cpu.get_cpu_capability()
    named = "" if instructions in ("DEFAULT", "NO AVX") else f", {instructions.replace('AVX512', 'AVX-512')}"
    return f"{_processor()}{named}"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    # the architecture, where the system gives no name
    return platform.processor() or platform.machine()


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that compute."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def free_memory_bytes(device: torch.device) -> int:
    """Return the memory that can still be allocated on ``device``."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    # a system without the figure: assume what a small laptop has left
    return host_memory_bytes()[1] or 4 << 30


def host_memory_bytes() -> tuple[int, int]:
    """Return total and available memory of the host; zeros where the system does not say."""
    # available and not free: the page cache, which holds weight files just read, is given up on demand
    try:
        fields = {
            name: int(rest.split()[0]) * 1024
            for name, _, rest in (line.partition(":") for line in Path("/proc/meminfo").read_text().splitlines())
        }
        return fields["MemTotal"], fields["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 0
        except (OSError, ValueError, AttributeError):
            return 0, 0
