"""Memory that was freed is used again, not returned and cleared by the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# in a process of its own: the setting stays
SCRIPT = """
import resource, torch
from cohort.core.process.freed_memory import keep_freed_memory
kept = keep_freed_memory()
def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        buffers = [torch.ones(1 << 20) for _ in range(3)]
        del buffers
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(2)
print(kept, faults(10))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_buffers_of_some_megabytes_are_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    kept, faults = done.stdout.split()
    assert kept == "True"
    # thirty buffers of 1,024 pages each would be mapped afresh; the heap may still grow by a few
    assert int(faults) < 10_000, done.stdout
