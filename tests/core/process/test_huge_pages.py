"""Large pages: asked for where memory is large and fresh, and never for what shares its pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from cohort.core.process.huge_pages import LEAST_BYTES, use_huge_pages

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _flags_at(address: int) -> list[str]:
    """Return the flags of the mapping that holds an address, as the kernel lists them."""
    found: list[str] = []
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if (area := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)) is not None:
            is_inside = int(area[1], 16) <= address < int(area[2], 16)
        elif is_inside and line.startswith("VmFlags:"):
            found = line.split()[1:]
    return found


def test_large_memory_gets_them() -> None:
    if not SETTING.exists():
        pytest.skip("this kernel has no transparent huge pages")
    memory = torch.empty(2 * LEAST_BYTES + 12345, dtype=torch.uint8)
    assert use_huge_pages(memory.data_ptr(), memory.numel())
    assert "hg" in _flags_at(memory.data_ptr() + LEAST_BYTES)
    memory.fill_(7)
    assert int(memory[-1]) == 7


def test_small_memory_stays_as_it_is() -> None:
    memory = torch.empty(LEAST_BYTES - 1, dtype=torch.uint8)
    assert not use_huge_pages(memory.data_ptr(), memory.numel())


def test_advice_that_is_refused_changes_nothing() -> None:
    # nothing is mapped there
    assert not use_huge_pages(0, 2 * LEAST_BYTES)
