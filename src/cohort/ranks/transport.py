"""Sends objects with tensors between the processes of a run.

Tensors of a host travel as bytes after the message, without being pickled. Those of a GPU stay where they are: the
receiver opens their memory (CUDA IPC), so a state of gigabytes costs a message of bytes. Between two hosts they travel
as bytes and arrive in the receiver's host memory.
"""

from __future__ import annotations

import io
import os
import pickle
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

__all__ = ["Channel"]


class Channel:
    """One end of a connection between two processes that trust each other."""

    def __init__(self, connection: Connection, *, opens_gpu_memory: bool = True) -> None:
        """Use one end; ``opens_gpu_memory`` is False where the other end is on another host."""
        self._connection, self._opens_gpu_memory = connection, opens_gpu_memory

    def send(self, message: object) -> None:
        """Send a message; the tensors of a GPU in it are opened, not copied, and must not change until they were read.

        Raises:
            OSError: the other end is gone.
        """
        buffers: list[pickle.PickleBuffer] = []
        content = io.BytesIO()
        _Pickler(content, buffers, opens_gpu_memory=self._opens_gpu_memory).dump(message)
        raw = [buffer.raw() for buffer in buffers]
        self._connection.send_bytes(pickle.dumps([len(part) for part in raw]))
        self._connection.send_bytes(content.getbuffer())
        for part in raw:
            self._write(part)

    def receive(self) -> Any:
        """Wait for a message and return it.

        Raises:
            EOFError, OSError: the other end is gone.
        """
        sizes: list[int] = pickle.loads(self._connection.recv_bytes())
        content = self._connection.recv_bytes()
        buffers = []
        for size in sizes:
            part = bytearray(size)
            self._read(part)
            buffers.append(part)
        return pickle.loads(content, buffers=buffers)

    def _write(self, part: memoryview) -> None:
        left = part.cast("B")
        while left:
            left = left[os.write(self._connection.fileno(), left) :]

    def _read(self, into: bytearray) -> None:
        # straight to where the bytes belong: the connection would ask for all that is left at each of many reads
        left = memoryview(into)
        while left:
            count = os.readv(self._connection.fileno(), [left])
            if not count:
                raise EOFError
            left = left[count:]

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()


class _Pickler(pickle.Pickler):
    def __init__(self, content: io.BytesIO, buffers: list[pickle.PickleBuffer], *, opens_gpu_memory: bool) -> None:
        super().__init__(content, protocol=5, buffer_callback=buffers.append)
        self._opens_gpu_memory = opens_gpu_memory

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return NotImplemented
        if obj.is_cuda and self._opens_gpu_memory:
            return reduce_tensor(obj)
        # as bytes: numpy has no bfloat16
        content: Any = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(content), obj.dtype, tuple(obj.shape))


def _tensor(content: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not len(content):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype).reshape(shape)
