"""Where the ranks of a group find each other, join and leave.

They meet through a file on one machine, and through a port of rank 0's machine on several.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["Rendezvous", "end_in_group", "is_on_one_host", "join_group", "leave_group", "open_store"]

_PORT_SCHEME = "tcp://"


class Rendezvous:
    """A place that the process which starts a group makes, and keeps while the group lives.

    Attributes:
        address: For :func:`open_store`.
    """

    def __init__(self, *, host: str | None = None) -> None:
        """Make a file; with ``host``, the name of this machine for the others, a store that ranks connect to."""
        self._folder: Path | None = None
        self._store: Any = None
        if host is None:
            self._folder = Path(tempfile.mkdtemp(prefix="cohort-ranks-"))
            self.address = str(self._folder / "group")
        else:
            self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
            self.address = f"{_PORT_SCHEME}{host}:{self._store.port}"

    def remove(self) -> None:
        self._store = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


_CONNECT = timedelta(minutes=5)


def is_on_one_host(address: str) -> bool:
    """Return whether all ranks that meet at ``address`` are on this machine."""
    return not address.startswith(_PORT_SCHEME)


def open_store(address: str, *, size: int, timeout: timedelta) -> Any:
    """Return torch.distributed's store at ``address`` for a rank of a group of ``size`` ranks.

    Args:
        timeout: Of each wait for a key.

    Raises:
        RuntimeError: nothing is there within five minutes.
    """
    if is_on_one_host(address):
        return dist.FileStore(address, size)  # type: ignore[attr-defined]
    host, _, port = address.removeprefix(_PORT_SCHEME).rpartition(":")
    # the timeout it is made with also holds for the connection, and ranks that train may wait for hours
    store = dist.TCPStore(host, int(port), is_master=False, timeout=_CONNECT)  # type: ignore[attr-defined]
    store.set_timeout(timeout)
    return store


def join_group(address: str, *, rank: int, size: int, device: torch.device, patience: timedelta) -> None:
    """Meet the other ranks at ``address``: with NCCL on GPUs, with gloo on CPUs.

    Args:
        device: Of this rank.
        patience: What a rank waits for the others, there and in each collective.
    """
    on_gpu = device.type == "cuda"
    if not on_gpu and is_on_one_host(address) and any(name == "lo" for _, name in socket.if_nameindex()):
        # the machine's own name need not be known to it
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=open_store(address, size=size, timeout=patience),
        rank=rank,
        world_size=size,
        timeout=patience,
        device_id=device if on_gpu else None,
    )


def leave_group() -> None:
    """Leave the group that :func:`join_group` joined, if it did; this process may join another."""
    if dist.is_initialized():
        dist.destroy_process_group()


def end_in_group(status: int) -> None:
    """End this process with ``status`` if it is in a group of GPUs, which NCCL leaves together with the other ranks.

    Their processes may have ended by now, and this one would wait for them.
    """
    if dist.is_initialized() and dist.get_backend() == "nccl":
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
