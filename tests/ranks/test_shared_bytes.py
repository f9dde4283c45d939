"""Memory that several processes map."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from cohort.ranks.shared_bytes import BytesHandle, can_share, open_bytes, share_bytes

CPU = torch.device("cpu")


def test_memory_of_another_process() -> None:
    shared, handle = share_bytes(256, device=CPU)
    shared.copy_(torch.arange(256, dtype=torch.int64).to(torch.uint8))
    code = (
        "import sys; from cohort.ranks.shared_bytes import *; "
        "found = open_bytes(BytesHandle(num_bytes=256, process_id=int(sys.argv[1]), descriptor=int(sys.argv[2]))); "
        "print(int(found.int().sum())); found[0] = 77"
    )
    arguments = [sys.executable, "-c", code, str(handle.process_id), str(handle.descriptor)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert int(done.stdout) == sum(range(256))
    assert shared[0] == 77


def test_memory_that_cannot_be_opened() -> None:
    with pytest.raises(OSError, match="No such file"):
        open_bytes(BytesHandle(num_bytes=256, process_id=1 << 30, descriptor=5))


def test_who_can_share(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_share(CPU, num_ranks=4) is None
    monkeypatch.delattr("os.memfd_create")
    assert can_share(CPU, num_ranks=2) == "this system has no anonymous shared memory"
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: {one, other} != {0, 2})
    assert can_share(torch.device("cuda"), num_ranks=2) is None
    assert can_share(torch.device("cuda"), num_ranks=3) == "GPU 0 cannot read the memory of GPU 2"
