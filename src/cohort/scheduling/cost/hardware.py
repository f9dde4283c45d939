"""Accelerators by name: what analytic costs and memory need to know of them, and ``8xH200`` as users write it.

Figures are the makers' (dense bf16 products, memory and its bandwidth, links between GPUs of one machine); what part of
them a training step reaches is the cost model's business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from cohort.core.errors import InputError, Problem

__all__ = ["KNOWN_GPUS", "Hardware", "HardwareChoice", "known_gpu", "parse_hardware"]


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One device.

    Attributes:
        name: As users write it and as cached costs are filed under.
        flops_per_second: Peak of dense bf16 products (CPU: float32 products that are reached).
        bytes_per_second: Peak of its memory.
        link_bytes_per_second: To other GPUs of the machine, each way; 0 where there is no other.
    """

    name: str
    memory_bytes: float
    flops_per_second: float
    bytes_per_second: float
    link_bytes_per_second: float = 0.0
    is_gpu: bool = True


def _gpu(name: str, gigabytes: float, teraflops: float, terabytes_per_second: float, link_gigabytes: float) -> Hardware:
    return Hardware(
        name=name,
        memory_bytes=gigabytes * 1e9,
        flops_per_second=teraflops * 1e12,
        bytes_per_second=terabytes_per_second * 1e12,
        link_bytes_per_second=link_gigabytes * 1e9,
    )


# Name, gigabytes, teraflops (dense bf16), terabytes a second, gigabytes a second to other GPUs.
KNOWN_GPUS: Mapping[str, Hardware] = {
    gpu.name: gpu
    for gpu in (
        _gpu("B200", 192, 2250, 8.0, 900),
        _gpu("H200", 150, 989, 4.8, 450),
        _gpu("GH200", 102, 989, 4.0, 450),
        _gpu("H100", 85, 989, 3.35, 450),
        _gpu("H100-PCIe", 85, 756, 2.0, 64),
        _gpu("A100-80GB", 85, 312, 2.0, 300),
        _gpu("A100-40GB", 42, 312, 1.55, 300),
        _gpu("L40S", 48, 362, 0.86, 32),
        _gpu("A10G", 24, 70, 0.6, 32),
        _gpu("L4", 24, 121, 0.3, 32),
        _gpu("V100-32GB", 34, 125, 0.9, 150),
        _gpu("RTX5090", 34, 210, 1.79, 32),
        _gpu("RTX4090", 25, 165, 1.01, 32),
        _gpu("RTX3090", 25, 71, 0.94, 32),
    )
}


def known_gpu(device_name: str) -> Hardware | None:
    """Return the GPU that a driver's name such as ``NVIDIA H100 80GB HBM3`` means; None when it is not known."""
    words = re.sub(r"[^a-z0-9]+", " ", device_name.lower())
    # All parts of a name must occur: `H100` is in the driver's name of an H100-PCIe as well, and the longer name wins.
    found = [gpu for name, gpu in KNOWN_GPUS.items() if all(_is_named(part, words) for part in name.lower().split("-"))]
    return max(found, key=lambda gpu: len(gpu.name), default=None)


def _is_named(part: str, words: str) -> bool:
    # Drivers write `RTX 4090` where users write RTX4090; without the look-arounds an L40 would be taken for an L4.
    return re.search(rf"(?<!\d){re.sub(r'(?<=[a-z])(?=[0-9])', ' ?', part)}(?!\d)", words) is not None


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


@dataclass(frozen=True, kw_only=True)
class HardwareChoice:
    """What ``2x8xH200`` says: nodes, GPUs of each, and which; ``has_count`` tells whether a number was given."""

    hardware: Hardware
    num_gpus: int = 1
    num_nodes: int = 1
    has_count: bool = False


_FORM = re.compile(r"(?:(?:(\d+)\s*x\s*)?(\d+)\s*x\s*)?([A-Za-z][\w .-]*)", re.IGNORECASE)


def parse_hardware(text: str, *, where: str) -> HardwareChoice:
    """Return what ``text`` names: ``H200``, ``8xH200``, or ``2x8xH200`` for two nodes of eight.

    Args:
        where: How messages name the option.

    Raises:
        InputError: the text has another form, names no known GPU, or asks for no GPUs.
    """
    # Compared without punctuation and case: users write h100-pcie, H100 PCIe and H100PCIE.
    match = _FORM.fullmatch(text.strip())
    known = {_plain(name): gpu for name, gpu in KNOWN_GPUS.items()}
    plain = _plain(match.group(3)) if match else _plain(text)
    gpu = known.get(plain)
    if match is None or gpu is None:
        near = get_close_matches(plain, known, n=1, cutoff=0.6)
        example = known[near[0]].name if near else "H200"
        raise InputError(
            Problem(
                where=where,
                found=repr(text),
                allowed=f"a number of GPUs and one of {', '.join(KNOWN_GPUS)}",
                hint=f"Write it as 8x{example}, or 2x8x{example} for two machines of eight.",
            )
        )
    nodes, gpus = int(match.group(1) or 1), int(match.group(2) or 1)
    if nodes < 1 or gpus < 1:
        raise InputError(
            Problem(where=where, found=repr(text), allowed="1 GPU or more", hint=f"Write it as 8x{gpu.name}.")
        )
    return HardwareChoice(hardware=gpu, num_gpus=gpus, num_nodes=nodes, has_count=match.group(2) is not None)
